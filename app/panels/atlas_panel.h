/// Draws all layers x heads of the focused lane as squares, scrolled and zoomed: thumbnails of the attention,
/// or the number that a list over them chooses. A click focuses a head.
/// Window thread, within a frame; knows nothing of the engine's thread.
#pragma once

#include "app/panels/panel.h"

#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace keyhole {

struct AtlasPanel {
    int side = 1;  ///< cells per thumbnail pixel along each axis, in the last frame
    std::tuple<int, int, float> seen{-1, -1, 1};  ///< layer, head and zoom of the last frame
    std::pair<float, float> room{0, 0};           ///< pitch of the squares and height of the last frame
    /// The numbers of the heads, and what they were made of.
    std::vector<float> values;
    std::tuple<std::uint64_t, int, int, int, int, std::optional<TokenSpan>, int> values_of;
};

void draw(AtlasPanel& panel, const PanelContext& context);

}  // namespace keyhole
