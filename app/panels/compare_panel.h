/// Draws lanes side by side: one heat map a lane with a common zoom, pointer and step, the difference
/// between the focused lane and the other one, the overlap of their kept sets, and where their texts differ.
/// Window thread.
#pragma once

#include "app/panels/heat_pane.h"
#include "app/panels/text_panel.h"

#include <array>

namespace keyhole {

struct ComparePanel {
    std::array<HeatPaneState, 5> panes;  ///< lanes, then the difference
    int scrolled_to = -1;                ///< step to which the lanes' own words are scrolled
};

void draw(ComparePanel& panel, const PanelContext& context);

/// Draws the text as the text panel does, and beside it the tokens that the two lanes chose, with differing
/// words marked.
void draw_texts(ComparePanel& panel, TextPanel& text, const PanelContext& context);

}  // namespace keyhole
