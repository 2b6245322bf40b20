/// All layers x heads of the focused lane as thumbnails; a click focuses. Window thread.
#pragma once

#include "app/panels/panel.h"

namespace keyhole {

struct AtlasPanel {
    int side = 1;  ///< cells that a pixel of a thumbnail stood for in the last frame, each way
};

void draw(AtlasPanel& panel, const PanelContext& context);

}  // namespace keyhole
