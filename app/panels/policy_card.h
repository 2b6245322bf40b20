/// Draws the settings of the focused lane, editable during the run: what makes its preset what it is, and all
/// other options of the lane spec under Advanced. A change is sent as a command when the widget is released;
/// while it is dragged, the lane's answer follows. Window thread.
#pragma once

#include "app/base/saved_policies.h"
#include "app/panels/policy_widgets.h"
#include "app/panels/tried_settings.h"

#include <string>

namespace keyhole {

struct PolicyCard {
    int edited = -1;  ///< card whose draft is being edited; -1: none
    LaneSpec draft;   ///< sent on release: eviction is final, so values during a drag must not apply
    TriedSettings tried;
    TauDrag tau_drag;
    FormulaField formula;
    std::string spec_text;
    int spec_lane = -1;
    std::string name;  ///< as it stands in the field
    int name_lane = -1;
    bool names = false;  ///< the field is being edited
    SavedPolicyList saved;
    /// What is said of the scores of the lane's newest selection, and what it was made of.
    std::string selection;
    std::uint64_t selection_of = 0;
    int selection_lane = -1, selection_row = -1;
};

/// right: right edge of the card's content, in screen pixels.
void draw(PolicyCard& panel, const PanelContext& context, int lane, float right);
/// Draws only preset and budget, for a projector.
void draw_brief(PolicyCard& panel, const PanelContext& context, int lane, float right);

}  // namespace keyhole
