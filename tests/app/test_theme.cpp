// Texts and lanes can be read on every background of the window: contrast as WCAG 2.2 defines it.
#include "app/gl/theme.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <tuple>
#include <utility>
#include <vector>

namespace keyhole::test_theme {
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

using Named = std::pair<const char*, ImU32>;

std::vector<Named> backgrounds(const theme::Colors& c) {
    return {{"window", c.window}, {"panel", c.panel}, {"card", c.card}, {"focused card", c.card_focused}};
}

class EveryTheme : public ::testing::TestWithParam<Background> {
  protected:
    const theme::Colors& c = theme::colors_on(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Backgrounds, EveryTheme, ::testing::Values(Background::dark, Background::light));

TEST(Theme, ContrastIsThatOfTheStandard) {
    EXPECT_NEAR(contrast(theme::rgb(0, 0, 0), theme::rgb(255, 255, 255)), 21, 1e-9);
    EXPECT_NEAR(contrast(theme::rgb(119, 119, 119), theme::rgb(255, 255, 255)), 4.48, 0.01);
}

TEST_P(EveryTheme, EveryTextCanBeReadOnEveryBackground) {
    for (const auto& [name, color] : std::vector<Named>{{"text", c.text},
                                                        {"dim", c.dim},
                                                        {"faint", c.faint},
                                                        {"accent", c.accent},
                                                        {"warm", c.warm},
                                                        {"fault", c.fault},
                                                        {"good", c.good}})
        for (const auto& [background, below] : backgrounds(c))
            EXPECT_GE(contrast(color, below), 4.5) << name << " on " << background;
    for (const auto& [name, text, below] : {std::tuple("lit", c.on_lit, c.lit),
                                            {"lit, hovered", c.on_lit, c.lit_hovered},
                                            {"run", c.on_run, c.run},
                                            {"run, hovered", c.on_run, c.run_hovered},
                                            {"stop", c.on_run, c.stop},
                                            {"stop, hovered", c.on_run, c.stop_hovered},
                                            {"plot", c.dim, c.inset},
                                            {"held", c.text, c.held},
                                            {"gone", c.text, c.gone},
                                            {"kept by all heads", c.text, c.kept_by_all},
                                            {"kept by few heads", c.text, c.kept_by_none}})
        EXPECT_GE(contrast(text, below), 4.5) << name;
}

TEST_P(EveryTheme, LanesAreSeenAndTheirNamesCanBeRead) {
    for (std::size_t lane = 0; lane < c.lanes.size(); ++lane) {
        for (const auto& [background, below] : backgrounds(c))
            EXPECT_GE(contrast(c.lanes[lane], below), 4.5) << "lane " << lane << " on " << background;
        for (std::size_t other = 0; other < lane; ++other) EXPECT_NE(c.lanes[lane], c.lanes[other]);
    }
}

TEST(Theme, NeighbouringLanesDifferWithoutColour) {
    for (int lane = 0; lane < 8; ++lane) {
        const std::span<const float> own = theme::lane_dash(lane);
        EXPECT_EQ(own.size() % 2, 0u) << "strokes and gaps alternate";
        for (int next = lane + 1; next < lane + 4; ++next) {
            const std::span<const float> other = theme::lane_dash(next);
            EXPECT_FALSE(std::equal(own.begin(), own.end(), other.begin(), other.end())) << lane;
        }
    }
}

}  // namespace
}  // namespace keyhole::test_theme
