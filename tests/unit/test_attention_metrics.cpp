// Retained mass, ideal set, cosines and sink share, by hand.
#include "engine/policy/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace keyhole::test_attention_metrics {
namespace {

using Positions = std::vector<std::int32_t>;
using Row = std::vector<float>;

Positions ideal(const Row& full, int k) {
    Positions out = {99};
    ideal_set(full, k, out);
    return out;
}

TEST(IdealSet, HoldsTheBestOlderOnesAndTheRowItself) {
    const Row full = {0.4f, 0.05f, 0.2f, 0.25f, 0.02f, 0.08f};
    EXPECT_EQ(ideal(full, 0), Positions({5}));
    EXPECT_EQ(ideal(full, 1), Positions({0, 5}));
    EXPECT_EQ(ideal(full, 3), Positions({0, 2, 3, 5}));
    EXPECT_EQ(ideal(full, 4), Positions({0, 1, 2, 3, 5}));
    EXPECT_EQ(ideal(full, 5), Positions({0, 1, 2, 3, 4, 5}));
    EXPECT_EQ(ideal(full, 1 << 30), Positions({0, 1, 2, 3, 4, 5}));
    EXPECT_EQ(ideal({1.0f}, 4), Positions({0}));
}

TEST(IdealSet, KeepsTheNewerOfEqualOnesAndNanLast) {
    EXPECT_EQ(ideal({0.2f, 0.2f, 0.2f, 0.2f, 0.2f}, 2), Positions({2, 3, 4}));
    const float nan = std::numeric_limits<float>::quiet_NaN();
    EXPECT_EQ(ideal({0, nan, 0, nan, 1}, 2), Positions({0, 2, 4}));
}

TEST(AttentionMeasures, AgreeWithValuesByHand) {
    // Full row of six, the lane keeps {0, 3} and sees itself; k = 2.
    const Row full = {0.4f, 0.05f, 0.2f, 0.25f, 0.02f, 0.08f};
    const Positions attended = {0, 3, 5}, best = ideal(full, 2);
    ASSERT_EQ(best, Positions({0, 3, 5}));
    const double kept = 0.4 + 0.25 + 0.08;
    EXPECT_NEAR(retained_mass(full, attended), kept, 1e-7);
    const Row renormalised = {static_cast<float>(0.4 / kept),  0, 0,
                              static_cast<float>(0.25 / kept), 0, static_cast<float>(0.08 / kept)};
    EXPECT_NEAR(cosine_ideal(renormalised, full, best), 1.0, 1e-7);
    // |f|^2 = 0.16 + 0.0025 + 0.04 + 0.0625 + 0.0004 + 0.0064 = 0.2718; on the kept three 0.2289
    EXPECT_NEAR(cosine(renormalised, full), std::sqrt(0.2289 / 0.2718), 1e-7);
    // A lane with {1, 2, 5}: only 5 is in the ideal set.
    const double other = 0.05 + 0.2 + 0.08;
    const Row worse = {0, static_cast<float>(0.05 / other), static_cast<float>(0.2 / other), 0,
                       0, static_cast<float>(0.08 / other)};
    // <a, f> and |a|, both times `other`: 0.0064, sqrt(0.0025 + 0.04 + 0.0064) = sqrt(0.0489)
    EXPECT_NEAR(cosine_ideal(worse, full, best), 0.0064 / std::sqrt(0.0489 * 0.2289), 1e-7);
    EXPECT_NEAR(cosine(worse, full), std::sqrt(0.0489 / 0.2718), 1e-7);
}

TEST(AttentionMeasures, TakeOutputsAsAnyVectors) {
    EXPECT_NEAR(cosine(Row{3, 4}, Row{4, 3}), 24.0 / 25.0, 1e-12);
    EXPECT_EQ(cosine(Row{1, 0}, Row{0, 2}), 0.0);
    EXPECT_EQ(cosine(Row{1, 2}, Row{-2, -4}), -1.0);
    EXPECT_EQ(cosine(Row{0, 0}, Row{1, 1}), 0.0) << "a head that saw nothing";
    EXPECT_TRUE(std::isnan(cosine(Row{std::numeric_limits<float>::quiet_NaN(), 1}, Row{1, 1})));
}

TEST(AttentionMeasures, SinkShareIsThatOfTheFirstFourTokens) {
    EXPECT_NEAR(sink_share(Positions({0, 2, 3, 4, 9}), Row({0.25f, 0.125f, 0.125f, 0.25f, 0.25f})), 0.5,
                1e-12);
    EXPECT_EQ(sink_share(Positions({4, 5}), Row({0.5f, 0.5f})), 0.0);
}

TEST(AttentionMeasures, MeansRunOverLayersAndHeads) {
    // One layer, two query heads on one KV head that stores 1 and 7.
    const KvLayout layout = KvLayout::grouped(1, 2, 1);
    RowOutput out;
    EXPECT_TRUE(std::isnan(mean_measures(layout, out).retained_mass));
    EXPECT_TRUE(std::isnan(mean_measures(layout, out).sink_share));
    out.values.offset = {0, 2};
    out.values.positions = {1, 7};
    out.values.head_offset = {0, 2, 4};
    out.values.attention = {0.75f, 0.25f, 0.25f, 0.75f};
    out.shadow = {{0.5f, 1.0f}, {0.25f, 0.5f}, {0, 1}, {-1, 0.5f}};
    const RowMeasures m = mean_measures(layout, out);
    EXPECT_EQ(m.retained_mass, 0.75f);
    EXPECT_EQ(m.cosine_ideal, 0.375f);
    EXPECT_EQ(m.cosine_full, 0.5f);
    EXPECT_EQ(m.output_similarity, -0.25f);
    EXPECT_EQ(m.sink_share, 0.5f);
}

}  // namespace
}  // namespace keyhole::test_attention_metrics
