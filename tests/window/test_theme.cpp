// Texts and lanes can be read on every ground of the window: contrast as WCAG 2.2 defines it.
#include "app/gl/theme.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <utility>

namespace keyhole {
namespace {

double luminance(ImU32 color) {
    const auto linear = [&](int shift) {
        const double c = double((color >> shift) & 0xFF) / 255;
        return c <= 0.04045 ? c / 12.92 : std::pow((c + 0.055) / 1.055, 2.4);
    };
    return 0.2126 * linear(IM_COL32_R_SHIFT) + 0.7152 * linear(IM_COL32_G_SHIFT) +
           0.0722 * linear(IM_COL32_B_SHIFT);
}

double contrast(ImU32 a, ImU32 b) {
    const auto [low, high] = std::minmax({luminance(a), luminance(b)});
    return (high + 0.05) / (low + 0.05);
}

constexpr std::array kGrounds = {std::pair("window", theme::kWindow), std::pair("panel", theme::kPanel),
                                 std::pair("card", theme::kCard), std::pair("focused", theme::kCardFocused)};

TEST(Theme, ContrastIsThatOfTheStandard) {
    EXPECT_NEAR(contrast(theme::rgb(0, 0, 0), theme::rgb(255, 255, 255)), 21, 1e-9);
    EXPECT_NEAR(contrast(theme::rgb(119, 119, 119), theme::rgb(255, 255, 255)), 4.48, 0.01);
}

TEST(Theme, EveryTextCanBeReadOnEveryGround) {
    for (const auto& [name, color] : {std::pair("text", theme::kText),
                                      {"dim", theme::kDim},
                                      {"faint", theme::kFaint},
                                      {"accent", theme::kAccent},
                                      {"warm", theme::kWarm},
                                      {"fault", theme::kFault},
                                      {"good", theme::kGood}})
        for (const auto& [ground, below] : kGrounds)
            EXPECT_GE(contrast(color, below), 4.5) << name << " on " << ground;
}

TEST(Theme, LanesAreSeenAndTheirNamesCanBeRead) {
    for (int lane = 0; lane < 8; ++lane)
        for (const auto& [ground, below] : kGrounds)
            EXPECT_GE(contrast(theme::lane_color(lane), below), 4.5) << "lane " << lane << " on " << ground;
}

}  // namespace
}  // namespace keyhole
