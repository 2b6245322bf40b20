/// The focused head of the focused lane, large, with the switches of what is shown of it. Window thread.
#pragma once

#include "app/panels/heat_pane.h"

namespace keyhole {

struct HeatmapPanel {
    HeatPaneState pane;
};

void draw(HeatmapPanel& panel, const PanelContext& context);

/// Mode, range, difference and blink: for all panes.
void draw_heat_toolbar(const PanelContext& context);
/// In place of the panes before the first record.
void draw_waiting(const PanelContext& context);

}  // namespace keyhole
