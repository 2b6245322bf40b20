/// Draws the settings of the focused lane: every option of the lane spec, editable during the run. A change
/// is sent as a command when the widget is released. Window thread.
#pragma once

#include "app/panels/policy_widgets.h"

#include <string>

namespace keyhole {

struct PolicyCard {
    int edited = -1;  ///< card whose draft is being edited; -1: none
    LaneSpec draft;   ///< sent on release: eviction is final, so values during a drag must not apply
    TauDrag tau_drag;
    std::string spec_text;
    int spec_lane = -1;
};

/// right: right edge of the card's content, in screen pixels.
void draw(PolicyCard& panel, const PanelContext& context, int lane, float right);
/// Draws only preset and budget, for a projector.
void draw_brief(PolicyCard& panel, const PanelContext& context, int lane, float right);

}  // namespace keyhole
