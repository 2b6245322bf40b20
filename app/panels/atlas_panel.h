/// Draws all layers x heads of the focused lane as square thumbnails, scrolled and zoomed. A click focuses a
/// head.
/// Window thread, within a frame; knows nothing of the engine's thread.
#pragma once

#include "app/panels/panel.h"

#include <tuple>
#include <utility>

namespace keyhole {

struct AtlasPanel {
    int side = 1;  ///< cells per thumbnail pixel along each axis, in the last frame
    std::tuple<int, int, float> seen{-1, -1, 1};  ///< layer, head and zoom of the last frame
    std::pair<float, float> room{0, 0};           ///< pitch of the squares and height of the last frame
};

void draw(AtlasPanel& panel, const PanelContext& context);

}  // namespace keyhole
