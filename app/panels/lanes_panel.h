/// Draws one card a lane with its name and measures. The focused card also shows its policy (policy_card.h).
/// Window thread.
#pragma once

#include "app/panels/policy_card.h"

namespace keyhole {

struct LanesPanel {
    PolicyCard card;
    int shown_lane = -1;              ///< lane to which the projector's cards are scrolled
    float wanted = 0;                 ///< height at which no card needs to be scrolled, as of the last frame
    bool has_place_of_atlas = false;  ///< in the last frame the atlas shared its place with the lanes
};

void draw(LanesPanel& panel, const PanelContext& context);

}  // namespace keyhole
