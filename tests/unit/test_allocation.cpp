// Who shares a budget: worked examples of Ada-KV and PyramidKV, and random shares against a slow count.
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/policy/allocation.h"
#include "engine/policy/lane_spec.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <string>

namespace keyhole::test_allocation {
namespace {

HeadShare head_of(const std::vector<float>& score, int budget) {
    HeadShare head{{}, score, {}, budget};
    for (std::size_t p = 0; p < score.size(); ++p) head.positions.push_back(static_cast<std::int32_t>(p));
    return head;
}

TEST(FieldExamples, AdakvGivesTheHeadWithManyGoodTokensMore) {
    const std::vector<HeadShare> heads = {head_of({.50f, .30f, .10f, .05f, .03f, .02f}, 3),
                                          head_of({.20f, .18f, .17f, .16f, .15f, .14f}, 3)};
    EXPECT_EQ(share_budget(heads, 0), (std::vector<int>{2, 4}));
    EXPECT_EQ(share_budget(heads, 0.2), (std::vector<int>{2, 4}));
    EXPECT_EQ(share_budget(heads, 0.8), (std::vector<int>{3, 3}));
    EXPECT_EQ(share_budget(heads, 1), (std::vector<int>{3, 3}));
    // A head that is alone keeps its budget.
    EXPECT_EQ(share_budget(std::span(heads).first(1), 0.2), (std::vector<int>{3}));
}

TEST(Allocation, TiesGoToTheLargerTieThenTheYoungerThenTheHigherHead) {
    std::vector<HeadShare> heads = {head_of({1, 1, 1}, 1), head_of({1, 1, 1}, 1)};
    EXPECT_EQ(share_budget(heads, 0), (std::vector<int>{1, 1})) << "token 2 of both";
    heads[0].budget = 0;
    EXPECT_EQ(share_budget(heads, 0), (std::vector<int>{0, 1})) << "the higher head";
    heads[0].tie = {0, 3, 0};
    heads[1].tie = {0, 0, 2};
    EXPECT_EQ(share_budget(heads, 0), (std::vector<int>{1, 0}));
    heads[0].score = {std::numeric_limits<float>::quiet_NaN(), -5, -6};
    heads[0].budget = 2;
    EXPECT_EQ(share_budget(heads, 0), (std::vector<int>{0, 3})) << "NaN ranks lowest";
}

// Field, sections 6 and 7, by the released codes.
TEST(FieldExamples, ReleasedCodesMissTheTotal) {
    const std::vector<int> far = released_pyramid_budgets(32, 320, 64, 10'000, 20);
    EXPECT_EQ(far.front() + 64, 564);
    EXPECT_EQ(far.back() + 64, 99);
    EXPECT_EQ(std::accumulate(far.begin(), far.end(), 0) - 32 * 256, 368);
    EXPECT_EQ(released_pyramid_budgets(32, 320, 64, 511, 20), std::vector<int>(32, 256)) << "flat";
    const std::vector<int> near = released_pyramid_budgets(32, 320, 64, 512, 20);
    EXPECT_EQ(near.front() + 64, 512);
    EXPECT_EQ(near.back() + 64, 140);
    const std::vector<HeadShare> heads = {head_of({.50f, .30f, .10f, .05f, .03f, .02f}, 3),
                                          head_of({.20f, .18f, .17f, .16f, .15f, .14f}, 3)};
    EXPECT_EQ(share_budget(heads, 0.2, true), (std::vector<int>{2, 3})) << "one less than 6";
    const HeadGrid grid{4, 1, {0, 1, 2, 3}};
    const auto budgets = [&](const std::string& spec) {
        const ResolvedPolicy policy = resolve(parse_lane_spec(spec).policy, 1000, 8, grid);
        std::vector<int> stored;
        for (int layer = 0; layer < 4; ++layer) stored.push_back(policy.at(layer, 0).stored);
        return stored;
    };
    EXPECT_EQ(budgets("pyramidkv:budget=34,pyramid=4"), (std::vector<int>{54, 41, 27, 14}));
    EXPECT_EQ(budgets("pyramidkv:budget=34,pyramid=4,dialect=released"), (std::vector<int>{54, 41, 28, 15}));
    EXPECT_TRUE(resolve(parse_lane_spec("adakv:budget=34,dialect=released").policy, 1000, 8).rounds_shares);
    EXPECT_FALSE(resolve(parse_lane_spec("adakv:budget=34").policy, 1000, 8).rounds_shares);
}

// While decoding, a head may store less than its share.
TEST(Allocation, WhatAHeadCannotTakeGoesToTheBestTokensThatWouldLeave) {
    const std::vector<HeadShare> heads = {head_of({9}, 4), head_of({1, 8, 7, 2}, 1), head_of({6, 3, 5}, 1)};
    EXPECT_EQ(share_budget(heads, 1), (std::vector<int>{1, 2, 3})) << "three go on: to 7, 5 and 3";
    EXPECT_EQ(share_budget(heads, 0), (std::vector<int>{1, 2, 3}));
}

TEST(FieldExamples, PyramidkvGivesLowerLayersMore) {
    const auto with_window = [](std::vector<int> budgets) {
        for (int& b : budgets) b += 8;
        return budgets;
    };
    EXPECT_EQ(with_window(pyramid_budgets(4, 32, 8, 1000, 4)), (std::vector<int>{50, 38, 26, 14}));
    EXPECT_EQ(with_window(pyramid_budgets(4, 32, 8, 40, 4)), (std::vector<int>{40, 35, 29, 24}));
    EXPECT_EQ(pyramid_budgets(4, 32, 8, 32, 4), (std::vector<int>(4, 24)))
        << "a prompt of the budget stays whole";
    EXPECT_EQ(pyramid_budgets(1, 32, 8, 1000, 4), (std::vector<int>{24}));
    EXPECT_EQ(pyramid_budgets(3, 32, 8, 1000, 1), (std::vector<int>(3, 24))) << "beta 1 is flat";
}

TEST(Allocation, TotalsAreExact) {
    std::mt19937 random(3);
    const auto below = [&](int n) { return static_cast<int>(random() % to_index(n)); };
    for (int i = 0; i < 2000; ++i) {
        const int layers = 1 + below(40), kept = below(20), budget = kept + below(400),
                  n = budget + below(900);
        const double beta = 1 + below(30);
        const std::vector<int> budgets = pyramid_budgets(layers, budget, kept, n, beta);
        ASSERT_EQ(std::accumulate(budgets.begin(), budgets.end(), 0), layers * (budget - kept));
        ASSERT_TRUE(std::is_sorted(budgets.rbegin(), budgets.rend()));
        ASSERT_LE(budgets.front(), n - kept);
        ASSERT_GE(budgets.back(), 0);
        std::vector<HeadShare> heads;
        for (int g = 0; g < 1 + below(5); ++g) {
            std::vector<float> score;
            for (int p = 0; p < 1 + below(30); ++p) score.push_back(static_cast<float>(below(12)));
            heads.push_back(head_of(score, below(static_cast<int>(score.size()) + 1)));
        }
        const double floor = below(5) / 4.0;
        const std::vector<int> kept_of = share_budget(heads, floor);
        int total = 0, sum = 0;
        for (std::size_t g = 0; g < heads.size(); ++g) {
            total += heads[g].budget;
            sum += kept_of[g];
            ASSERT_LE(kept_of[g], static_cast<int>(heads[g].score.size()));
            ASSERT_GE(kept_of[g], static_cast<int>(std::floor(floor * heads[g].budget)));
        }
        ASSERT_EQ(sum, total);
        if (floor > 0) continue;
        // Slow: a head keeps a token when fewer than `total` tokens are better.
        for (std::size_t g = 0; g < heads.size(); ++g) {
            int own = 0;
            for (std::size_t p = 0; p < heads[g].score.size(); ++p) {
                int better = 0;
                for (std::size_t h = 0; h < heads.size(); ++h)
                    for (std::size_t q = 0; q < heads[h].score.size(); ++q) {
                        const float x = heads[h].score[q], y = heads[g].score[p];
                        better += x > y || (x == y && (q > p || (q == p && h > g))) ? 1 : 0;
                    }
                own += better < total ? 1 : 0;
            }
            ASSERT_EQ(kept_of[g], own);
        }
    }
}

TEST(Allocation, LayersOfAPyramidHaveBudgetsOfTheirOwn) {
    HeadGrid grid{4, 2, {}};
    for (int head = 0; head < 8; ++head) grid.kv_head.push_back(head);
    const auto budgets = [&](const std::string& spec, int n) {
        const ResolvedPolicy policy = resolve(parse_lane_spec(spec).policy, n, 4, grid);
        std::vector<int> found;
        for (int layer = 0; layer < 4; ++layer) {
            EXPECT_EQ(policy.at(layer, 0).recent, policy.recent);
            EXPECT_EQ(policy.at(layer, 0).budget, policy.at(layer, 1).budget);
            found.push_back(policy.at(layer, 0).stored);
        }
        return found;
    };
    EXPECT_EQ(budgets("pyramidkv:budget=32,pyramid=4", 1000), (std::vector<int>{50, 38, 26, 14}));
    EXPECT_EQ(budgets("pyramidkv:budget=32,pyramid=4", 40), (std::vector<int>{40, 35, 29, 24}));
    EXPECT_EQ(budgets("snapkv:budget=32,recent=8", 1000), (std::vector<int>(4, 32)));
    EXPECT_EQ(budgets("pyramidkv:budget=32,pyramid=4,budget@L1=9", 1000), (std::vector<int>{50, 9, 26, 14}));
    // The last two layers read the second one's KV heads: two layers count.
    for (std::size_t i = 4; i < 8; ++i) grid.kv_head[i] = grid.kv_head[2 + i % 2];
    EXPECT_EQ(budgets("pyramidkv:budget=32,pyramid=4", 1000), (std::vector<int>{50, 14, 14, 14}));
}

TEST(Allocation, RefusesWhatItCannotShare) {
    const auto fault = [](const std::string& spec) {
        try {
            (void)parse_lane_spec(spec);
        } catch (const Error& error) {
            return std::string(error.what());
        }
        return std::string();
    };
    EXPECT_EQ(fault("adakv"), "");
    EXPECT_EQ(fault("adakv:alloc=global"), "");
    EXPECT_EQ(fault("h2o:alloc=adaptive"), "");
    EXPECT_EQ(format_effective_spec(parse_lane_spec("h2o:budget=8,alloc=adaptive,prefill=stepwise"), 20, 4),
              "h2o:budget=8,recent=4,alloc=adaptive,prefill=stepwise");
    EXPECT_TRUE(resolve(parse_lane_spec("h2o:alloc=adaptive").policy, 20, 4).shares_at_rows());
    EXPECT_FALSE(resolve(parse_lane_spec("h2o:alloc=adaptive,evict=prompt").policy, 20, 4).shares_at_rows());
    EXPECT_NE(fault("adakv:scope=layer").find("takes scope=head"), std::string::npos);
    EXPECT_NE(fault("adakv:floor=101%").find("from 0% to 100%"), std::string::npos);
    EXPECT_NE(fault("adakv:floor=3").find("from 0% to 100%"), std::string::npos);
    EXPECT_NE(fault("pyramidkv:scope=shared").find("take another scope"), std::string::npos);
    EXPECT_NE(fault("pyramidkv:pyramid=0.5").find("pyramid is 1 or more"), std::string::npos);
    EXPECT_EQ(format_lane_spec(parse_lane_spec("adakv:floor=50%,alloc=global")),
              "adakv:alloc=global,floor=50%");
}

}  // namespace
}  // namespace keyhole::test_allocation
