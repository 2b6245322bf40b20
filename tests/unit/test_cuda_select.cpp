// The device kernels for selection and removal, run on the host, against the CPU's rule on random caches.
#include "engine/backend/cpu/select.h"
#include "engine/backend/cuda/kernels/select.h"
#include "engine/base/index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <vector>

namespace keyhole::cuda::test_cuda_select {
namespace {

constexpr int kHeadDim = 16;

/// One KV head with shuffled slots. Key, value and score of a slot encode its position, so that a lost or
/// repeated move shows.
struct Cache {
    int capacity, row;
    std::vector<float> keys, values, noise;
    std::vector<std::int32_t> positions;
    std::vector<std::uint8_t> pinned;
    std::vector<float> scores;
    DeviceHead<float> head{};
    HeadScores scoring{};

    Cache(int n, int spread, std::mt19937& random, bool ties) : capacity(n + 3), row(spread - 1) {
        std::set<int> chosen = {row};
        while (static_cast<int>(chosen.size()) < n)
            chosen.insert(static_cast<int>(random() % to_index(spread)));
        positions.assign(chosen.begin(), chosen.end());
        std::shuffle(positions.begin(), positions.end(), random);
        positions.resize(to_index(capacity), -1);
        pinned.assign(to_index(capacity), 0);
        for (int i = 0; i < capacity; ++i) {
            const float score = static_cast<float>(random() % (ties ? 5 : 100000)) / 7;
            scores.push_back(random() % 50 == 0 ? std::numeric_limits<float>::quiet_NaN() : score);
        }
        keys.assign(to_index(capacity * kHeadDim), 0);
        values = keys;
        noise.assign(to_index(capacity), 0);
        for (int s = 0; s < n; ++s) {
            noise[to_index(s)] = static_cast<float>(positions[to_index(s)]);
            for (int i = 0; i < kHeadDim; ++i) {
                keys[to_index((i / 8 * capacity + s) * 8 + i % 8)] =
                    static_cast<float>(positions[to_index(s)] * 100 + i);
                values[to_index(s * kHeadDim + i)] =
                    static_cast<float>(positions[to_index(s)] * 100 + i) + 0.5f;
            }
        }
        head = {keys.data(), values.data(), positions.data(), pinned.data(), n, capacity};
        scoring.score[kScores - 1] = scores.data();
        scoring.noise = noise.data();
    }

    /// Runs both kernels. Returns the victims' positions, ascending.
    std::vector<int> select(const RowRule& rule, float* threshold) {
        std::vector<float> pooled(to_index(capacity));
        std::vector<std::uint8_t> leaves(to_index(capacity), 9);
        const std::int32_t readers[] = {0}, reader_offsets[] = {0, 1}, unit_of_head[] = {0};
        const DeviceUnit unit{0, 1, 0, 0};
        const std::vector<std::int32_t> before = positions;
        constexpr int kMost = 64;
        std::vector<std::int32_t> victims(kMost);
        std::int32_t n_victims = -1;
        Leaving leaving{};
        LaneView<float> lane{};
        lane.heads = &head;
        lane.scores = &scoring;
        lane.units = &unit;
        lane.unit_of_head = unit_of_head;
        lane.rules = &rule;
        lane.n_units = 1;
        lane.row = row;
        std::vector<std::int32_t> order(to_index(head.count));
        for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int32_t>(i);
        std::sort(order.begin(), order.end(),
                  [&](int a, int b) { return positions[to_index(a)] < positions[to_index(b)]; });
        lane.order = order.data();
        lane.list_stride = capacity;
        std::vector<BlockRank> blocks(to_index(capacity), {NAN, NAN, -9, 0});
        const ReaderTable table{readers, reader_offsets};
        SelectVictims<float> select{&lane,     table, pooled.data(), leaves.data(), &leaving,
                                    threshold, 1,     capacity};
        select.blocks = blocks.data();
        run_on_host(select, {1, 1}, 64);
        run_on_host(CompactHead<float>{&lane, table, leaves.data(), &leaving, victims.data(), &n_victims, 1,
                                       capacity, 1, kMost, kHeadDim},
                    {1, 1}, 32);
        std::vector<int> out;
        for (int v = 0; v < n_victims; ++v) out.push_back(before[to_index(victims[to_index(v)])]);
        std::sort(out.begin(), out.end());
        return out;
    }

    void expect_consistent(const std::map<int, float>& score_of) const {
        std::set<int> seen;
        for (int s = 0; s < head.count; ++s) {
            const int position = positions[to_index(s)];
            EXPECT_TRUE(seen.insert(position).second) << "position " << position << " is stored twice";
            const float score = score_of.at(position);
            EXPECT_TRUE(scores[to_index(s)] == score || std::isnan(score));
            EXPECT_EQ(noise[to_index(s)], static_cast<float>(position));
            for (int i = 0; i < kHeadDim; ++i) {
                EXPECT_EQ(keys[to_index((i / 8 * capacity + s) * 8 + i % 8)],
                          static_cast<float>(position * 100 + i));
                EXPECT_EQ(values[to_index(s * kHeadDim + i)], static_cast<float>(position * 100 + i) + 0.5f);
            }
        }
    }
};

TEST(CudaSelect, ChoosesTheVictimsOfTheCpu) {
    std::mt19937 random(3);
    int n_evictions = 0, n_dropped = 0, n_pinned = 0, n_whole = 0;
    for (int round = 0; round < 900; ++round) {
        const int n = 1 + static_cast<int>(random() % 90);
        Cache cache(n, n + static_cast<int>(random() % 40), random, round % 3 == 0);
        ResolvedPolicy policy;
        policy.budget = policy.stored = std::max(1, n - static_cast<int>(random() % (round % 2 ? 2 : 20)));
        policy.sinks = static_cast<int>(random() % to_index(std::min(policy.stored, 5) + 1));
        policy.recent = policy.newest =
            static_cast<int>(random() % to_index(policy.stored - policy.sinks + 1));
        if (round % 5 == 0 && policy.recent > 0 && policy.stored > 1) {
            policy.gap = ResolvedPolicy::Gap::dropped;
            policy.counts_columns = true;
            policy.newest = policy.recent - 1;
            --policy.stored;
        } else if (round % 3 == 1) {
            policy.unit = 2 + static_cast<int>(random() % 9);
        }
        std::vector<std::int32_t> by_position(cache.positions.begin(), cache.positions.begin() + n);
        std::sort(by_position.begin(), by_position.end());
        std::map<int, float> score_of;
        std::vector<float> score(to_index(n));
        std::vector<std::int32_t> pinned;
        for (int s = 0; s < n; ++s) {
            const int position = cache.positions[to_index(s)];
            score_of[position] = cache.scores[to_index(s)];
            if (round % 4 == 0 && random() % 6 == 0) {
                cache.pinned[to_index(s)] = 1;
                pinned.push_back(position);
            }
        }
        std::sort(pinned.begin(), pinned.end());
        for (int i = 0; i < n; ++i) score[to_index(i)] = score_of[by_position[to_index(i)]];
        std::vector<int> expected;
        const float expected_threshold =
            select_victims(by_position, score, pinned, policy, cache.row, expected);
        for (int& index : expected) index = by_position[to_index(index)];

        RowRule rule{};
        rule.dropped_position = -1;
        rule.stored = policy.stored;
        rule.newest = policy.newest;
        rule.sinks = policy.sinks;
        rule.unit = policy.unit;
        if (policy.gap == ResolvedPolicy::Gap::dropped) rule.dropped_position = cache.row - policy.recent + 1;
        rule.evicts = must_select(policy, n, cache.row) ? 1 : 0;
        rule.accumulator = kScores - 1;
        float threshold = -1;
        const std::vector<int> victims = cache.select(rule, &threshold);
        ASSERT_EQ(victims, expected) << "round " << round << ", " << n << " stored";
        ASSERT_TRUE(threshold == expected_threshold ||
                    (std::isnan(threshold) && std::isnan(expected_threshold)))
            << "round " << round << ": " << threshold << " instead of " << expected_threshold;
        EXPECT_EQ(cache.head.count, n - static_cast<int>(victims.size()));
        cache.expect_consistent(score_of);
        n_evictions += static_cast<int>(victims.size());
        n_dropped += policy.gap == ResolvedPolicy::Gap::dropped && !victims.empty();
        n_pinned += !pinned.empty() && !victims.empty();
        n_whole += policy.unit > 1 && static_cast<int>(victims.size()) > n - policy.stored;
    }
    EXPECT_GT(n_evictions, 1000);
    EXPECT_GT(n_dropped, 30);
    EXPECT_GT(n_pinned, 30);
    EXPECT_GT(n_whole, 50) << "more leave than must";
}

TEST(CudaSelect, PoolsOverTheReaders) {
    std::vector<float> a = {1, 5, 2}, b = {3, 1, 8};
    HeadScores scores[2] = {};
    scores[0].score[0] = a.data();
    scores[1].score[0] = b.data();
    const std::int32_t readers[] = {0, 1};
    RowRule rule{};
    rule.pool = static_cast<int>(Pool::mean);
    EXPECT_EQ(pooled_score(scores, readers, 2, rule, 1), 3.0f);
    rule.pool = static_cast<int>(Pool::sum);
    EXPECT_EQ(pooled_score(scores, readers, 2, rule, 1), 6.0f);
    rule.pool = static_cast<int>(Pool::max);
    EXPECT_EQ(pooled_score(scores, readers, 2, rule, 2), 8.0f);
}

}  // namespace
}  // namespace keyhole::cuda::test_cuda_select
