/// The override matrix: a grid of layers x heads for one field of the focused lane, painted with a value. Window thread.
#pragma once

#include "app/panels/policy_widgets.h"
#include "app/view/override_grid.h"

#include <array>
#include <string>

namespace keyhole {

struct OverrideMatrix {
    Override::Field field = Override::Field::alpha;
    std::array<std::optional<OverrideValue>, 5> brushes;  ///< by field; empty until first shown
    std::string tau_text;
    PolicyParams draft;             ///< while painting
    bool painting = false;          ///< a button is down that was pressed on the grid
    std::pair<int, int> last_cell;  ///< painted before: a fast stroke skips none
    bool clearing = false;          ///< it is the right one
};

/// The contents of the dialog.
void draw(OverrideMatrix& panel, const PanelContext& context);

}  // namespace keyhole
