/// Draws the colour bar beside a heat map: its range, its ticks, and the distribution of the head's values.
/// Window thread.
#pragma once

#include "app/panels/panel.h"

namespace keyhole {

struct RangeBar {
    float low = 0, high = 1;  ///< edited in the popup
};

void draw_range_bar(RangeBar& panel, const PanelContext& context, const HeadMatrix& matrix,
                    const ColorScale& scale, ImVec2 at, float height);

}  // namespace keyhole
