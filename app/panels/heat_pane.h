/// Draws one canvas, steps (rows) x positions: a head of a lane as attention, mask or score, or the
/// difference of two lanes. All canvases share zoom, pan, and the hovered and the picked cell. Window
/// thread.
#pragma once

#include "app/panels/range_bar.h"

namespace keyhole {

struct HeatPaneState {
    bool panning = false;
    bool boxing = false;  ///< right-drag zooms to a box
    ImVec2 press{0, 0};
    RangeBar range;
};

struct HeatPane {
    int lane = 0;     ///< as the lanes are listed
    int versus = -1;  ///< difference: the lane that is subtracted; -1: none
    const HeatData& data;
    HeatPainter& painter;
    bool scale = true;  ///< draws the colour bar or legend beside it
    bool rows = true;   ///< draws the row numbers
};

/// Returns the width in pixels of the colour bar or the legend.
float heat_scale_width(const PanelContext& context);

/// Fills the remaining room.
void draw_heat_pane(HeatPaneState& state, const PanelContext& context, const HeatPane& pane);

}  // namespace keyhole
