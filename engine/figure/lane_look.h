/// How a lane's line looks, by a number that the lane keeps: the same in the window and in files. Lanes
/// differ in dashes too, so that they can be told apart without colour. Plain values; any thread.
#pragma once

#include "engine/figure/colormap.h"

#include <array>
#include <cstddef>
#include <span>

namespace keyhole {

struct LaneLook {
    Rgb8 color;                   ///< its contrast to the background is 4.5 and more
    std::span<const float> dash;  ///< lengths on, off, on, ... in unscaled pixels; empty: solid
};

namespace lane_looks {

inline constexpr std::size_t kColors = 8;
// Orange also marks thresholds, picks and evictions, so it comes last.
inline constexpr std::array<Rgb8, kColors> kOnDark = {{{205, 209, 217},
                                                       {86, 180, 233},
                                                       {40, 190, 150},
                                                       {214, 139, 182},
                                                       {240, 228, 100},
                                                       {134, 154, 248},
                                                       {150, 200, 110},
                                                       {236, 130, 72}}};
inline constexpr std::array<Rgb8, kColors> kOnLight = {{{70, 74, 84},
                                                        {0, 92, 152},
                                                        {0, 104, 76},
                                                        {150, 50, 112},
                                                        {112, 92, 0},
                                                        {64, 78, 196},
                                                        {60, 100, 16},
                                                        {168, 66, 0}}};
inline constexpr std::array<float, 2> kDashed = {7, 4}, kDotted = {2, 3};
inline constexpr std::array<float, 4> kDashDot = {9, 3, 2, 3};
inline constexpr std::array<std::span<const float>, 4> kDashes = {std::span<const float>(), kDashed, kDotted,
                                                                  kDashDot};

}  // namespace lane_looks

/// look: RunHistory::Lane::look. Colours repeat after eight, dashes after four.
constexpr LaneLook lane_look(int look, Background background) {
    using namespace lane_looks;
    const auto n = static_cast<std::size_t>(look);
    const auto& colors = background == Background::light ? kOnLight : kOnDark;
    return {colors[n % colors.size()], kDashes[n % kDashes.size()]};
}

}  // namespace keyhole
