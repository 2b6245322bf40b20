/// One canvas with rows of time over positions: a head of a lane as attention, mask or score, or what two lanes differ by. All canvases
/// share zoom, pan, the pointed and the picked cell. Window thread.
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
    int card = 0;     ///< lane, as its card counts
    int versus = -1;  ///< of a difference: the lane that is taken away
    const HeatData& data;
    HeatPainter& painter;
    bool scale = true;  ///< has the bar or the legend of its colours beside it
    bool rows = true;   ///< has the rows' numbers
};

/// Pixels that the bar or the legend takes.
float heat_scale_width(const PanelContext& context);

/// In the room that is left.
void draw_heat_pane(HeatPaneState& state, const PanelContext& context, const HeatPane& pane);

}  // namespace keyhole
