/// One card a lane: its policy, edited while it runs; changes go out as commands. Window thread.
#pragma once

#include "app/panels/panel.h"

namespace keyhole {

struct LanesPanel {
    int edited = -1;  ///< card whose draft is being dragged
    LaneSpec draft;   ///< sent when the widget is let go: eviction is final, so no value on the way counts
    std::string spec_text;
    int spec_lane = -1;
};

void draw(LanesPanel& panel, const PanelContext& context);

}  // namespace keyhole
