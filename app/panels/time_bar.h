/// Scrubbing back through the run: evictions and divergence of every row. Window thread.
#pragma once

#include "app/panels/panel.h"

namespace keyhole {

struct TimeBar {};

void draw(TimeBar& panel, const PanelContext& context);

}  // namespace keyhole
