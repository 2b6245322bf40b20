/// Draws the bar that scrubs through the run, with evictions and divergence of every step. Window thread.
#pragma once

#include "app/panels/panel.h"

namespace keyhole {

struct TimeBar {};

void draw(TimeBar& panel, const PanelContext& context);

}  // namespace keyhole
