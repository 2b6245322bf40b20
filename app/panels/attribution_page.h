/// Draws what eviction costs a lane: what to give back, how far the asking is, the parts as a map, as shaded
/// text and as a list, and the budgets that follow. Window thread.
#pragma once

#include "app/panels/panel.h"

namespace keyhole {

struct AttributionPage {
    int by = 0, questions = 0, rank = 0;  ///< places in their lists
    int n_questions = 8, context = 384;
    bool takes = false;
    int form = 4;              ///< place in budget_choices()
    int budget = 0, rest = 0;  ///< 0: by the lane
    int map_under = -1;        ///< part under the pointer; -1: none
};

/// Draws into the current window.
void draw(AttributionPage& page, const PanelContext& context);

}  // namespace keyhole
