#include "engine/base/index.h"
#include "engine/figure/colormap.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace keyhole::test_colormap {
namespace {

double luminance(Rgb8 c) {
    const auto linear = [](double v) {
        v /= 255;
        return v <= 0.04045 ? v / 12.92 : std::pow((v + 0.055) / 1.055, 2.4);
    };
    return 0.2126 * linear(c.r) + 0.7152 * linear(c.g) + 0.0722 * linear(c.b);
}

TEST(Colormap, KnownEntriesOfViridisAndCividis) {
    // The published ends: #440154 to #fde725, #00224e to #fee838.
    EXPECT_EQ(colormap_table(Colormap::viridis)[0], (Rgb8{68, 1, 84}));
    EXPECT_EQ(colormap_table(Colormap::viridis)[255], (Rgb8{253, 231, 37}));
    EXPECT_EQ(colormap_table(Colormap::viridis)[128], (Rgb8{33, 145, 140}));
    EXPECT_EQ(colormap_table(Colormap::cividis)[0], (Rgb8{0, 34, 78}));
    EXPECT_EQ(colormap_table(Colormap::cividis)[255], (Rgb8{254, 232, 56}));
}

TEST(Colormap, LightnessIsMonotoneSoThatOrderCanBeSeenWithoutHue) {
    for (Colormap map : {Colormap::viridis, Colormap::cividis}) {
        const auto& table = colormap_table(map);
        for (std::size_t i = 2; i < 256; ++i)
            EXPECT_GE(luminance(table[i]) + 2e-3, luminance(table[i - 2])) << colormap_name(map) << i;
    }
    const auto& gray = colormap_table(Colormap::gray);
    for (std::size_t i = 1; i < 256; ++i) EXPECT_LE(luminance(gray[i]), luminance(gray[i - 1]));
}

TEST(Colormap, DivergingIsPinnedAtZeroAndFallsAlikeOnBothSides) {
    const auto& table = colormap_table(Colormap::rdbu);
    EXPECT_EQ(table[127], table[128]);
    EXPECT_GT(luminance(table[127]), 0.9);
    for (std::size_t i = 0; i < 127; ++i) {
        EXPECT_LE(luminance(table[i]), luminance(table[i + 1]) + 2e-3);
        EXPECT_NEAR(luminance(table[i]), luminance(table[255 - i]), 0.08);
    }
    EXPECT_GT(table[20].b, table[20].r);    // negative is blue
    EXPECT_GT(table[235].r, table[235].b);  // positive is red
    for (const ColorScale scale : {ColorScale{Colormap::rdbu, false, true, 0, 2, 1},
                                   ColorScale{Colormap::rdbu, true, true, 0.01f, 2, 1},
                                   ColorScale{Colormap::rdbu, false, true, 0, 2, 0.5f}}) {
        EXPECT_EQ(color_of(scale, 0), table[128]);
        EXPECT_EQ(color_of(scale, 2), table[255]);
        EXPECT_EQ(color_of(scale, -2), table[0]);
        EXPECT_EQ(color_of(scale, 99), table[255]);
        const ScaleTerms terms = scale_terms(scale);
        for (float v : {0.02f, 0.3f, 1.1f})
            EXPECT_NEAR(color_index(terms, v) + color_index(terms, -v), 255, 1);
    }
}

TEST(Colormap, TheDarkDivergingMapIsGreyAtZeroAndRisesAlikeOnBothSides) {
    const auto& table = colormap_table(Colormap::rdbu_dark);
    EXPECT_EQ(table[127], table[128]);
    const auto [r, g, b] = table[127];
    EXPECT_EQ(r, g);
    EXPECT_EQ(g, b);
    EXPECT_LT(luminance(table[127]), 0.2);
    EXPECT_GT(luminance(table[0]), 0.5);
    for (std::size_t i = 0; i < 127; ++i) {
        EXPECT_GE(luminance(table[i]), luminance(table[i + 1]) - 2e-3);
        EXPECT_NEAR(luminance(table[i]), luminance(table[255 - i]), 0.08);
    }
    EXPECT_GT(table[40].b, table[40].r);    // negative is blue
    EXPECT_GT(table[215].r, table[215].b);  // positive is red
}

TEST(Colormap, CellsDifferOnBothBackgrounds) {
    for (const Background background : {Background::light, Background::dark}) {
        const CellColors c = cell_colors(background);
        const std::array all = {c.future, c.missing, c.evicted, c.hatch, c.kept, c.last_seen, c.hidden};
        for (std::size_t i = 0; i < all.size(); ++i)
            for (std::size_t j = 0; j < i; ++j) EXPECT_NE(all[i], all[j]) << i << " " << j;
        EXPECT_EQ(luminance(c.future) > 0.5, background == Background::light);
    }
}

TEST(Colormap, NamesGoBothWays) {
    for (Colormap map : kColormaps) EXPECT_EQ(colormap_from_name(colormap_name(map)), map);
    EXPECT_FALSE(colormap_from_name("jet"));
}

TEST(Colormap, LinearIndexIsTheFloorOfTheShareTimes256) {
    const ScaleTerms terms = scale_terms({Colormap::viridis, false, false, -1, 3, 1});
    for (int i = 0; i < 256; ++i) {
        const auto inside = static_cast<float>(-1 + 4 * (i + 0.5) / 256);
        EXPECT_EQ(color_index(terms, inside), i);
    }
    EXPECT_EQ(color_index(terms, -1), 0);
    EXPECT_EQ(color_index(terms, 3), 255);
    EXPECT_EQ(color_index(terms, -std::numeric_limits<float>::infinity()), 0);
    EXPECT_EQ(color_index(terms, std::numeric_limits<float>::infinity()), 255);
}

TEST(Colormap, LogarithmicScaleAndZero) {
    const ColorScale scale{Colormap::viridis, true, false, 1e-4f, 1, 1};
    const ScaleTerms terms = scale_terms(scale);
    EXPECT_EQ(color_index(terms, 0), 0);
    EXPECT_EQ(color_index(terms, -5), 0);
    EXPECT_EQ(color_index(terms, 1e-9f), 0);
    EXPECT_EQ(color_index(terms, 1), 255);
    EXPECT_NEAR(color_index(terms, 1e-2f), 128, 1);
    EXPECT_NEAR(color_index(terms, 1e-1f), 192, 1);
}

TEST(Colormap, GammaLiftsSmallValues) {
    const ScaleTerms terms = scale_terms({Colormap::viridis, false, false, 0, 1, 0.5f});
    EXPECT_EQ(color_index(terms, 0.25f), 128);
    EXPECT_EQ(color_index(terms, 0.0625f), 64);
}

TEST(Colormap, ValueAtIsTheInverse) {
    for (const ColorScale& scale : {ColorScale{Colormap::viridis, false, false, 2, 5, 1},
                                    ColorScale{Colormap::viridis, true, false, 1e-5f, 0.5f, 1},
                                    ColorScale{Colormap::viridis, false, false, 0, 1, 0.4f},
                                    ColorScale{Colormap::rdbu, false, true, 0, 3, 1},
                                    ColorScale{Colormap::rdbu, true, true, 1e-3f, 3, 1}}) {
        const ScaleTerms terms = scale_terms(scale);
        for (int i = 0; i < 256; ++i) {
            if (scale.diverging && (i == 127 || i == 128)) continue;
            EXPECT_EQ(color_index(terms, value_at(scale, (static_cast<float>(i) + 0.5f) / 256)), i);
        }
    }
}

TEST(Colormap, NanAndImpossibleScales) {
    constexpr float kInf = std::numeric_limits<float>::infinity(),
                    kNan = std::numeric_limits<float>::quiet_NaN();
    EXPECT_EQ(color_of({}, std::numeric_limits<float>::quiet_NaN()), kNanColor);
    for (const ColorScale& scale :
         {ColorScale{Colormap::viridis, false, false, 1, 1, 1},
          ColorScale{Colormap::viridis, false, false, 2, 1, 1},
          ColorScale{Colormap::viridis, true, false, 0, 1, 1},
          ColorScale{Colormap::viridis, true, false, 0, 0, 1},
          ColorScale{Colormap::viridis, false, false, 0, 1, 0},
          ColorScale{Colormap::viridis, false, false, 0, kInf, 1},
          ColorScale{Colormap::viridis, true, false, 0, kInf, 0.5f},
          ColorScale{Colormap::viridis, true, false, kInf, kInf, 1},
          ColorScale{Colormap::viridis, false, false, -kInf, kInf, 1},
          ColorScale{Colormap::viridis, false, false, 0, 1e-45f, 1},
          ColorScale{Colormap::viridis, true, false, 1e-45f, 3e-45f, 5},
          ColorScale{Colormap::viridis, true, false, 1e30f, std::nextafter(1e30f, kInf), 1},
          ColorScale{Colormap::viridis, false, false, kNan, kNan, 1},
          ColorScale{Colormap::viridis, true, false, -1, kNan, 1},
          ColorScale{Colormap::rdbu, false, true, 0, kInf, 1},
          ColorScale{Colormap::rdbu, true, true, 1e-45f, 1e-45f, 1}}) {
        const ScaleTerms terms = scale_terms(scale);
        EXPECT_TRUE(std::isfinite(terms.offset));
        EXPECT_TRUE(std::isfinite(terms.factor));
        EXPECT_GT(terms.factor, 0);
        for (float v : {-kInf, -1.0f, 0.0f, 1e-45f, 0.5f, 1.0f, 9.0f, 3e38f, kInf, kNan}) {
            const int index = color_index(terms, v);
            EXPECT_GE(index, 0);
            EXPECT_LE(index, 255);
        }
    }
}

TEST(Colormap, ValuesBeyondTheRangeAreMarkedWhereThatIsAskedFor) {
    const float inf = std::numeric_limits<float>::infinity();
    for (const bool logarithmic : {false, true}) {
        ColorScale scale{.logarithmic = logarithmic, .low = 0.01f, .high = 0.5f};
        const auto table = colormap_table(Colormap::viridis);
        EXPECT_EQ(color_of(scale, 0.6f), table[255]);
        EXPECT_EQ(color_of(scale, 0.001f), table[0]);
        EXPECT_EQ(color_of(scale, inf), kNanColor);
        scale.marks_clips = true;
        scale.marks_nan = false;
        EXPECT_EQ(color_of(scale, 0.6f), kAboveColor);
        EXPECT_EQ(color_of(scale, 0.001f), kBelowColor);
        EXPECT_EQ(color_of(scale, 0.0f), kBelowColor);
        EXPECT_EQ(color_of(scale, 0.5f), table[255]);
        EXPECT_EQ(color_of(scale, 0.01f), table[0]);
        EXPECT_EQ(color_of(scale, inf), kMissingColor);
    }
    // Differences have no lower end: small ones are near zero.
    for (const bool logarithmic : {false, true}) {
        const ColorScale scale{.map = Colormap::rdbu,
                               .logarithmic = logarithmic,
                               .diverging = true,
                               .low = 0.01f,
                               .high = 0.5f,
                               .marks_clips = true};
        for (const float sign : {-1.0f, 1.0f}) {
            EXPECT_EQ(color_of(scale, sign * 0.6f), kAboveColor);
            EXPECT_EQ(
                color_of(scale, sign * 0.001f),
                colormap_table(Colormap::rdbu)[to_index(color_index(scale_terms(scale), sign * 0.001f))]);
        }
        EXPECT_EQ(clip_of(scale_terms(scale), 0), 0);
    }
}

TEST(Colormap, HatchCoversAThird) {
    int n = 0;
    for (int y = 0; y < 36; ++y)
        for (int x = 0; x < 36; ++x) n += on_hatch(x, y);
    EXPECT_EQ(n, 36 * 36 / 3);
}

}  // namespace
}  // namespace keyhole::test_colormap
