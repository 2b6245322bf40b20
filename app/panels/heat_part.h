/// Draws a part of a head's map, with words on both axes: a few steps and the positions around some words.
/// The part stays where it is; a click picks a cell. Window thread, within a frame.
#pragma once

#include "app/panels/heat_pane.h"

#include <string>
#include <vector>

namespace keyhole {

struct HeatPart {
    TokenSpan columns;
    int first_row = 0;
    std::vector<std::string> rows;  ///< a label a step
};

/// Returns how many columns with a word each have room in this width, in the current font.
int columns_with_words(const PanelContext& context, float width);

/// Fills a rectangle of this size at the cursor. Its id is that of the innermost scope.
void draw_heat_part(const PanelContext& context, const HeatPane& pane, const HeatPart& part, ImVec2 size);

}  // namespace keyhole
