// One row of scores on chosen logits, without a model: masks, temperature, accumulation, overrides.
#include "engine/backend/cpu/score.h"
#include "engine/backend/cpu/select.h"
#include "engine/base/index.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace keyhole::cpu::test_score {
namespace {

ResolvedPolicy keep(int budget, int sinks, int recent) {
    ResolvedPolicy policy;
    policy.budget = policy.stored = budget;
    policy.sinks = sinks;
    policy.recent = policy.newest = recent;
    return policy;
}

/// A cache without a model, fed with chosen logits by position.
class Harness {
  public:
    Harness(const KvLayout& layout, const ResolvedPolicy& policy) : layout_(layout), cache(layout_, 1) {
        cache.set_policy(policy);
        cache.reserve(16);
    }
    /// Feeds the same logits to every head. `scratch` keeps the first head's row.
    ScoredRow feed(int row, const std::vector<float>& logit_of_position) {
        for (int g = 0; g < layout_.n_kv_heads(); ++g) cache.append(g, row);
        ScoredRow first;
        for (int l = layout_.n_layers() - 1; l >= 0; --l)
            for (int h = layout_.n_heads() - 1; h >= 0; --h) {
                const int g = layout_.kv_head_from_head(l, h);
                scratch.grow(cache.count(g));
                for (int slot = 0; slot < cache.count(g); ++slot)
                    scratch.logits[to_index(slot)] = logit_of_position[to_index(cache.positions(g)[slot])];
                first = score_row(cache, {l, h}, row, scratch);
            }
        return first;
    }
    float score(int accumulator, int head, int position) const {
        const int g = layout_.kv_head_from_head(head / layout_.n_heads(), head % layout_.n_heads());
        for (int slot = 0; slot < cache.count(g); ++slot)
            if (cache.positions(g)[slot] == position) return cache.score(accumulator, head)[slot];
        return std::numeric_limits<float>::quiet_NaN();
    }

  private:
    KvLayout layout_;

  public:
    CpuKvCache cache;
    RowScratch scratch;
};

const float kLog2 = std::log(2.0f), kLog3 = std::log(3.0f);

TEST(ScoreRow, FoldsWhatTheEquationSays) {
    // Row 0: p = (1). Row 1, logits (0, ln 3): p = (1/4, 3/4). alpha 0.5, damping 0.5 from row 1 on.
    ResolvedPolicy policy;
    policy.alpha = 0.5f;
    policy.damping = 0.5f;
    policy.n_prompt = 1;
    Harness run(KvLayout::grouped(1, 1, 1), policy);
    run.feed(0, {0});
    run.feed(1, {0, kLog3});
    EXPECT_FLOAT_EQ(run.scratch.probabilities[1], 0.75f);
    EXPECT_FLOAT_EQ(run.score(kSum, 0, 0), 1.125f);
    EXPECT_FLOAT_EQ(run.score(kForgetting, 0, 0), 0.625f);
    EXPECT_FLOAT_EQ(run.score(kForgetting, 0, 1), 0.375f);
    EXPECT_EQ(run.cache.score(kTempered, 0), nullptr);
}

TEST(ScoreRow, AHiddenColumnTakesNoPartAndKeepsItsScore) {
    // Released H2O, k = 2, w = 1, prompt of 2: row 3 does not see position 2.
    ResolvedPolicy policy = keep(2, 0, 1);
    policy.gap = ResolvedPolicy::Gap::hidden;
    policy.counts_columns = true;
    policy.n_prompt = 2;
    Harness run(KvLayout::grouped(1, 1, 1), policy);
    run.feed(0, {0});
    run.feed(1, {0, 0});
    EXPECT_FALSE(run.feed(2, {0, 0, 0}).hides);
    const float before = run.score(kSum, 0, 2);
    const ScoredRow row = run.feed(3, {0, kLog2, 9, 0});
    ASSERT_TRUE(row.hides);
    EXPECT_EQ(run.scratch.hidden[2], 1);
    EXPECT_EQ(run.scratch.probabilities[2], 0.0f);
    EXPECT_FLOAT_EQ(run.scratch.probabilities[1], 0.5f) << "the others share all";
    EXPECT_EQ(run.score(kSum, 0, 2), before);
}

TEST(ScoreRow, ARowThatSeesNothingIsZero) {
    ResolvedPolicy policy = keep(1, 0, 0);
    // recent 0: the row is hidden from itself, and nothing else is stored
    policy.gap = ResolvedPolicy::Gap::hidden;
    Harness run(KvLayout::grouped(1, 1, 1), policy);
    EXPECT_TRUE(run.feed(5, {0, 0, 0, 0, 0, 7}).hides);
    EXPECT_EQ(run.scratch.probabilities[0], 0.0f);
    EXPECT_EQ(run.score(kSum, 0, 5), 0.0f);
}

TEST(ScoreRow, ADilatedRowSeesEveryOtherToken) {
    ResolvedPolicy policy = keep(3, 0, 0);  // 3 tokens, 2 apart: a span of 5
    policy.dilation = 1;
    policy.stored = policy.newest = 5;
    Harness run(KvLayout::grouped(1, 1, 1), policy);
    const std::vector<float> flat(8, 0.0f);
    for (int row = 0; row < 8; ++row) {
        run.feed(row, flat);
        for (int slot = 0; slot < run.cache.count(0); ++slot) {
            const int back = row - run.cache.positions(0)[slot];
            const float expected =
                back % 2 == 0 && back <= 4 ? 1.0f / static_cast<float>(std::min(row / 2 + 1, 3)) : 0.0f;
            EXPECT_FLOAT_EQ(run.scratch.probabilities[to_index(slot)], expected) << row << " " << back;
        }
        select_row(run.cache, row);
    }
    EXPECT_EQ(run.cache.stored_positions(0), (std::vector<std::int32_t>{3, 4, 5, 6, 7}));
}

TEST(ScoreRow, TauNearZeroIsAnArgmax) {
    for (const double tau : {1e-9, 1e-300}) {
        ResolvedPolicy policy;
        policy.tau.begin = policy.tau.end = tau;
        Harness run(KvLayout::grouped(1, 1, 1), policy);
        run.feed(0, {5000});
        run.feed(1, {5000, -7000});
        run.feed(2, {1, 2, 1.999f});
        EXPECT_EQ(run.score(kTempered, 0, 0), 2.0f) << tau;
        EXPECT_EQ(run.score(kTempered, 0, 1), 1.0f) << tau;
        EXPECT_EQ(run.score(kTempered, 0, 2), 0.0f) << tau;
    }
}

TEST(ScoreRow, AlphaZeroKeepsTheLastRowAndOneTheSum) {
    ResolvedPolicy policy;
    policy.alpha = 0;
    Harness run(KvLayout::grouped(1, 1, 1), policy);
    run.feed(0, {0});
    run.feed(1, {0, kLog3});
    EXPECT_FLOAT_EQ(run.score(kForgetting, 0, 0), 0.25f);
    EXPECT_FLOAT_EQ(run.score(kSum, 0, 0), 1.25f);
    EXPECT_EQ(accumulator_of(ResolvedPolicy{}), kSum) << "alpha 1 needs no second one";
}

TEST(ScoreRow, HeadsThatOverridesSetApartHaveTheirOwnPolicy) {
    // Heads 0 and 1 have a KV head each. Head 1 forgets, uses tau 2 and keeps one token; head 0 keeps two.
    ResolvedPolicy policy = keep(2, 0, 0);
    ResolvedPolicy own = keep(1, 0, 0);
    own.alpha = 0;
    own.tau.begin = own.tau.end = 2;
    policy.variants = {own};
    policy.variant_of_head = {-1, 0};
    policy.n_heads = 2;
    Harness run(KvLayout::grouped(1, 2, 2), policy);
    run.feed(0, {0});
    run.feed(1, {0, 2 * kLog3});
    EXPECT_FLOAT_EQ(run.score(kSum, 0, 0), 1.1f);
    EXPECT_FLOAT_EQ(run.score(kTempered, 0, 0), 1.1f) << "head 0 does not temper";
    EXPECT_FLOAT_EQ(run.score(kTempered, 1, 0), 1.25f);
    EXPECT_FLOAT_EQ(run.score(kForgetting, 0, 0), 1.1f) << "nor forget";
    EXPECT_FLOAT_EQ(run.score(kTemperedForgetting, 1, 0), 0.25f);
    EXPECT_EQ(select_row(run.cache, 1), (std::vector<Eviction>{{1, 0, 1}}));
    EXPECT_EQ(run.cache.stored_positions(0).size(), 2u);
    EXPECT_EQ(run.cache.stored_positions(1), (std::vector<std::int32_t>{1}));
}

TEST(ScoreRow, NanRanksLowestAndNothingCrashes) {
    Harness run(KvLayout::grouped(1, 1, 1), keep(2, 0, 1));
    run.feed(0, {0});
    run.feed(1, {0, 0});
    const float nan = std::numeric_limits<float>::quiet_NaN();
    run.feed(2, {0, nan, 0});
    EXPECT_EQ(select_row(run.cache, 2).size(), 1u);
    run.feed(3, {nan, nan, nan, nan});
    EXPECT_EQ(select_row(run.cache, 3).size(), 1u);
    EXPECT_EQ(run.cache.stored_positions(0).back(), 3) << "the window holds";
}

}  // namespace
}  // namespace keyhole::cpu::test_score
