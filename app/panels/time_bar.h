/// Draws the bar that scrubs through the run, with evictions and divergence of every step.
/// Window thread, within a frame; changes the run only by commands.
#pragma once

#include "app/panels/panel.h"

namespace keyhole {

struct TimeBar {};

void draw(TimeBar& panel, const PanelContext& context);

}  // namespace keyhole
