/// Draws the focused head of the focused lane, large, with the switches for its view.
/// Window thread, within a frame; knows nothing of the engine's thread.
#pragma once

#include "app/panels/heat_pane.h"

namespace keyhole {

struct HeatmapPanel {
    HeatPaneState pane;
};

void draw(HeatmapPanel& panel, const PanelContext& context);

/// Draws the switches for mode, range, difference and blink, which apply to all panes.
void draw_heat_toolbar(const PanelContext& context);
/// Draws a placeholder before the first record.
void draw_waiting(const PanelContext& context);

}  // namespace keyhole
