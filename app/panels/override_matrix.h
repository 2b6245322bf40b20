/// Draws the override matrix: a grid of layers x heads for one field of the focused lane, painted with a
/// value. Window thread.
#pragma once

#include "app/panels/policy_widgets.h"
#include "app/view/override_grid.h"

#include <array>
#include <string>

namespace keyhole {

struct OverrideMatrix {
    Override::Field field = Override::Field::budget;
    static constexpr std::size_t kFields = 9;
    std::array<std::optional<OverrideValue>, kFields> brushes;  ///< by field; empty until it is first shown
    std::array<std::string, kFields> texts;  ///< by field, of those that are typed: tau and the formulas
    PolicyParams draft;                      ///< while painting
    bool painting = false;                   ///< a button that was pressed on the grid is down
    std::pair<int, int> last_cell;           ///< last painted cell, so that a fast stroke skips none
    bool clearing = false;                   ///< that button is the right one
};

/// Draws the contents of the dialog. When it opens it shows a value that the lane overrides, if any.
void draw(OverrideMatrix& panel, const PanelContext& context, bool opening);

}  // namespace keyhole
