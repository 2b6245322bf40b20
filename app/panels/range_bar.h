/// The bar of colours beside a heat map: its range, its ticks, and how the values of the head are spread over it. Window thread.
#pragma once

#include "app/panels/panel.h"

namespace keyhole {

struct RangeBar {
    float low = 0, high = 1;  ///< of the popup
};

void draw_range_bar(RangeBar& panel, const PanelContext& context, const HeadMatrix& matrix,
                    const ColorScale& scale, ImVec2 at, float height);

}  // namespace keyhole
