/// One card a lane: what it is and how it does; the focused one opens its policy (policy_card.h). Window thread.
#pragma once

#include "app/panels/policy_card.h"

namespace keyhole {

struct LanesPanel {
    PolicyCard card;
    int shown_lane = -1;  ///< that the projector's cards were scrolled to
};

void draw(LanesPanel& panel, const PanelContext& context);

}  // namespace keyhole
