/// Lanes side by side: a heat map each with one zoom, one pointer and one time, what the focused lane and the other differ by, the overlap
/// of their kept sets head by head, and where their texts part. Window thread.
#pragma once

#include "app/panels/heat_pane.h"
#include "app/panels/token_strip.h"

#include <array>

namespace keyhole {

struct ComparePanel {
    std::array<HeatPaneState, 5> panes;  ///< lanes, then the difference
    int last_words = -1;                 ///< row that their own words are scrolled to
};

void draw(ComparePanel& panel, const PanelContext& context);

/// The text as the strip has it, and beside it what the two lanes chose to say, differing words marked.
void draw_texts(ComparePanel& panel, TokenStrip& strip, const PanelContext& context);

}  // namespace keyhole
