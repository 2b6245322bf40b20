/// Plots the share of the watched span that each lane retains over the steps, and marks where the answer was
/// lost. Window thread.
#pragma once

#include "app/panels/panel.h"

namespace keyhole {

/// Fills the remaining room.
void draw_watched_plot(const PanelContext& context);

}  // namespace keyhole
