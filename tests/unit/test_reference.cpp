// Tests the reference itself, before it judges the engine: against published values and sets worked out by
// hand.
#include "engine/base/index.h"
#include "tests/reference/reference_policy.h"
#include "tests/reference/tiny_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace reference::test_reference {
namespace {

TEST(Reference, PhiloxGivesThePublishedWords) {
    // kat_vectors of Random123, "philox4x32 10".
    using Words = std::array<std::uint32_t, 4>;
    EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
    EXPECT_EQ(philox({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
              (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
    EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
              (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Reference, NoiseHasTheMomentsOfItsDistribution) {
    for (Noise kind : {Noise::gumbel, Noise::gaussian}) {
        const int n = 20000;
        double sum = 0, squares = 0;
        for (int p = 0; p < n; ++p) {
            const double z = noise_at(kind, true, 7, 1, 2, 3, p);
            sum += z;
            squares += z * z;
        }
        const double mean = sum / n, variance = squares / n - mean * mean;
        EXPECT_NEAR(mean, 0.5772, 0.04);
        EXPECT_NEAR(variance, 1.6449, 0.1);
    }
    EXPECT_EQ(noise_at(Noise::gumbel, false, 7, 1, 2, 3, 4), noise_at(Noise::gumbel, false, 7, 1, 2, 99, 4));
    EXPECT_NE(noise_at(Noise::gumbel, true, 7, 1, 2, 3, 4), noise_at(Noise::gumbel, true, 7, 1, 2, 99, 4));
}

TEST(Reference, AttentionRowsAreDistributionsAndNotFlat) {
    const TinyModel model({});
    const Weights weights = load_weights(model.folder());
    Sequence sequence(weights);
    PositionSets visible = empty_sets(weights);
    double largest = 0;
    Row last;
    for (int token : random_tokens(40, 3)) {
        last = sequence.feed(token, visible);
        for (auto& layer : visible)
            for (auto& head : layer) head.insert(last.row);
    }
    for (const auto& layer : last.attention)
        for (const Vector& attention : layer) {
            double sum = 0;
            for (double p : attention) {
                sum += p;
                largest = std::max(largest, p);
            }
            EXPECT_NEAR(sum, 1.0, 1e-12);
        }
    EXPECT_GT(largest, 0.2);
}

TEST(Reference, StoredTypesDecodeToNearlyTheSameWeights) {
    TinyShape shape;
    const TinyModel f32(shape);
    shape.dtype = StoredAs::f16;
    const TinyModel f16(shape);
    shape.dtype = StoredAs::bf16;
    const TinyModel bf16(shape);
    const Weights a = load_weights(f32.folder()), b = load_weights(f16.folder()),
                  c = load_weights(bf16.folder());
    for (std::size_t i = 0; i < a.layers[1].down.values.size(); ++i) {
        const double value = a.layers[1].down.values[i];
        EXPECT_NEAR(b.layers[1].down.values[i], value, std::abs(value) / 1024 + 1e-7);
        EXPECT_NEAR(c.layers[1].down.values[i], value, std::abs(value) / 128);
    }
}

TEST(Reference, SinkAndWindowKeepWhatTheirNamesSay) {
    const TinyModel model({});
    const Weights weights = load_weights(model.folder());
    Policy policy;
    policy.budget = 5;
    policy.sinks = 2;
    policy.recent = 3;
    Lane lane(weights, policy, 8);
    for (int token : random_tokens(10, 1)) lane.feed(token);
    EXPECT_EQ(lane.stored()[0][0], (std::set<int>{0, 1, 7, 8, 9}));
    const LaneRow row = lane.feed('x');
    EXPECT_EQ(row.attended[1][1], (std::set<int>{0, 1, 7, 8, 9, 10}));  // stored k, attended k + 1
    EXPECT_EQ(row.evictions.front().position, 7);
}

TEST(Reference, TovaKeepsTheBestOfTheLastRow) {
    const TinyModel model({});
    const Weights weights = load_weights(model.folder());
    Policy policy;
    policy.budget = 3;
    policy.alpha = 0;
    policy.unit = Unit::layer;
    Lane lane(weights, policy, 6);
    LaneRow row;
    for (int token : random_tokens(6, 5)) row = lane.feed(token);
    std::vector<std::pair<double, int>> mean(6);
    for (std::size_t p = 0; p < 6; ++p) {
        for (int h = 0; h < 4; ++h) mean[p].first -= row.model.attention[1][keyhole::to_index(h)][p] / 4;
        mean[p].second = static_cast<int>(p);
    }
    std::sort(mean.begin(), mean.end());
    EXPECT_EQ(lane.stored()[1][0], (std::set<int>{mean[0].second, mean[1].second, mean[2].second}));
    EXPECT_EQ(lane.stored()[1][0], lane.stored()[1][1]);
}

// KEYHOLE_REAL_MODEL names a folder of tinyllamas/stories260K; the ids are its greedy continuation of bos,
// from another program.
TEST(Reference, ContinuesARealCheckpointAsPublished) {
    const char* folder = std::getenv("KEYHOLE_REAL_MODEL");
    if (folder == nullptr) GTEST_SKIP() << "KEYHOLE_REAL_MODEL is not set";
    const Weights weights = load_weights(folder);
    Lane lane(weights, {}, 1);
    std::vector<int> ids = {1};
    while (ids.size() < 31) {
        const Vector logits = lane.feed(ids.back()).model.next_logits;
        ids.push_back(static_cast<int>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    }
    EXPECT_EQ(
        ids, (std::vector<int>{1,   403, 407, 261, 378, 432, 383, 286, 261, 376, 298, 315, 421, 395, 317, 426,
                               338, 401, 396, 267, 337, 410, 408, 419, 292, 411, 322, 265, 282, 295, 433}));
}

}  // namespace
}  // namespace reference::test_reference
