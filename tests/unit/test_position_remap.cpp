// Model positions of keys: the check values of the released code, and positions in a cache with holes.
#include "engine/backend/common/kernels.h"
#include "engine/backend/common/rotation_table.h"
#include "engine/backend/cpu/position_remap.h"
#include "engine/base/index.h"
#include "engine/policy/math.h"
#include "tests/reference/engine_run.h"
#include "tests/reference/tiny_model.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

namespace keyhole::cpu::test_position_remap {
namespace {

constexpr std::array kPositions = {0, 1, 7, 17, 28, 40, 100, 5000, 70000};

/// Returns the model positions in cache order.
std::vector<int> places(const CpuKvCache& cache, Positions positions) {
    std::vector<std::int32_t> steps(to_index(cache.count(0)));
    const int last = steps_back(cache, 0, positions, steps);
    std::vector<int> out;
    for (int i = 0; i < cache.count(0); ++i) {
        const int slot = cache.order(0)[i];
        out.push_back(cache.positions(0)[slot] - steps[to_index(slot)]);
    }
    EXPECT_EQ(out.back(), last);
    return out;
}

TEST(Places, AreThoseOfTheReleasedCode) {
    const KvLayout layout = KvLayout::grouped(1, 1, 1);
    CpuKvCache cache(layout, 4);
    cache.set_policy({});
    cache.reserve(16);
    for (int p : kPositions) cache.append(0, p);
    EXPECT_EQ(places(cache, Positions::original), std::vector<int>(kPositions.begin(), kPositions.end()));
    EXPECT_EQ(places(cache, Positions::cache), (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8}));
    EXPECT_EQ(places(cache, Positions::compressed), (std::vector<int>{0, 1, 7, 17, 28, 39, 51, 64, 77}));
    // Slots are no longer in text order, and the first gap counts from 0.
    cache.evict(0, 0);
    cache.evict(0, 28);
    EXPECT_EQ(places(cache, Positions::cache), (std::vector<int>{0, 1, 2, 3, 4, 5, 6}));
    EXPECT_EQ(places(cache, Positions::compressed), (std::vector<int>{1, 7, 17, 29, 41, 54, 67}));
}

TEST(Places, ATurnIsTheRotationOfTheDifference) {
    for (const int head_dim : {6, 8, 64}) {
        const std::size_t half = to_index(head_dim / 2);
        std::vector<double> frequency(half);
        for (std::size_t i = 0; i < half; ++i)
            frequency[i] = std::pow(10000.0, -2.0 * static_cast<double>(i) / head_dim);
        Rotary rotary;
        rotary.dims = head_dim;
        RotationTable turns(frequency);
        turns.grow(3);
        turns.grow(900);  // rows added later equal rows made at once
        std::vector<float> key(2 * to_index(head_dim)), turned(key.size());
        for (std::size_t i = 0; i < key.size(); ++i) key[i] = std::sin(static_cast<float>(i) + 1);
        const std::vector<float> plain = key;
        const std::array<std::int32_t, 2> original = {7, 900}, steps = {0, 877};
        for (std::size_t s = 0; s < 2; ++s)
            rotate_head(key.data() + s * to_index(head_dim), turns.row(original[s]),
                        turns.row(original[s]) + half, rotary);
        turn_keys(key.data(), steps.data(), 2, head_dim, rotary, turns.row(0), turned.data());
        for (std::size_t i = 0; i < to_index(head_dim); ++i)
            EXPECT_EQ(turned[i], key[i]) << "no turn changes no bit";
        for (std::size_t i = 0; i < half; ++i) {
            const double a = plain[to_index(head_dim) + i], b = plain[to_index(head_dim) + half + i];
            const double angle = 23 * frequency[i];
            EXPECT_NEAR(turned[to_index(head_dim) + i], a * std::cos(angle) - b * std::sin(angle), 1e-5);
            EXPECT_NEAR(turned[to_index(head_dim) + half + i], b * std::cos(angle) + a * std::sin(angle),
                        1e-5);
        }
    }
}

TEST(Places, NothingEvictedIsPlainBitForBit) {
    const reference::TinyModel tiny({});
    const auto model = load_model(tiny.folder());
    const auto tokens = reference::random_tokens(40, 5);
    const std::span<const int> all(tokens);
    const std::vector<std::string> specs = {"h2o:budget=100", "h2o:budget=100,positions=cache",
                                            "h2o:budget=100,positions=compressed"};
    const auto rows = reference::run_engine(model, specs, all.first(30), all.subspan(30));
    for (std::size_t t = 0; t < rows[0].size(); ++t)
        for (std::size_t n : {1u, 2u})
            EXPECT_EQ(reference::difference(rows[0][t], rows[n][t]), "") << specs[n];
}

}  // namespace
}  // namespace keyhole::cpu::test_position_remap
