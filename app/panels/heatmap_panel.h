/// The focused head: rows of time over positions, as attention, mask or score. Window thread.
#pragma once

#include "app/panels/panel.h"

namespace keyhole {

struct HeatmapPanel {
    bool panning = false;
    bool boxing = false;  ///< right-drag zooms to a box
    ImVec2 press{0, 0};
    float low = 0, high = 1;  ///< of the range popup
};

void draw(HeatmapPanel& panel, const PanelContext& context);

}  // namespace keyhole
