/// Draws numbers beside the difference of two lanes: the overlap of their kept sets head by head, the step
/// where their texts differ first, KL and agreement. With watched words: how much of them each lane keeps.
/// Window thread.
#pragma once

#include "app/panels/panel.h"

namespace keyhole {

/// Fills the remaining room. Needs records of both lanes.
void draw_overlap(const PanelContext& context);

}  // namespace keyhole
