/// Draws all layers x heads of the focused lane as thumbnails. A click focuses a head.
/// Window thread, within a frame; knows nothing of the engine's thread.
#pragma once

#include "app/panels/panel.h"

namespace keyhole {

struct AtlasPanel {
    int side = 1;  ///< cells per thumbnail pixel along each axis, in the last frame
};

void draw(AtlasPanel& panel, const PanelContext& context);

}  // namespace keyhole
