/// The settings of the focused lane: every option of the lane spec, edited while it runs; a change goes out as a command when a widget
/// is let go. Window thread.
#pragma once

#include "app/panels/policy_widgets.h"

#include <string>

namespace keyhole {

struct PolicyCard {
    int edited = -1;  ///< card whose draft is being dragged
    LaneSpec draft;   ///< sent when the widget is let go: eviction is final, so no value on the way counts
    TauDrag tau_drag;
    std::string spec_text;
    int spec_lane = -1;
};

/// right: edge of the card's content, in screen pixels.
void draw(PolicyCard& panel, const PanelContext& context, int lane, float right);
/// For a projector: preset and budget alone.
void draw_brief(PolicyCard& panel, const PanelContext& context, int lane, float right);

}  // namespace keyhole
