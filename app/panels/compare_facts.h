/// Beside the difference of two lanes: the overlap of their kept sets head by head, where their texts part, KL and agreement; with watched
/// words how much of them each lane holds. Window thread.
#pragma once

#include "app/panels/panel.h"

namespace keyhole {

/// In the room that is left.
void draw_compare_facts(const PanelContext& context);

}  // namespace keyhole
