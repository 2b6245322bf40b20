// The engine's scoring and selection against the simulations of every policy and dialect, on random logits:
// kept sets, visible sets and scores, row by row and head by head.
#include "engine/base/index.h"
#include "tests/reference/engine_scores.h"
#include "tests/reference/policy_cases.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

namespace reference::test_dialects {
namespace {

constexpr int kDecode = 14;

struct Tally {
    int n_rows = 0, n_choices = 0, n_near_ties = 0;
    double least_margin = 1;
};

/// Expects sets to nest (kept within visible within the text) and no unit to grow without a row.
void expect_nested(const Simulated& rows, const std::string& spec) {
    PositionSet before;
    for (std::size_t row = 0; row < rows.size(); ++row) {
        before.insert(static_cast<int>(row));
        ASSERT_TRUE(std::includes(before.begin(), before.end(), rows[row].kept.begin(), rows[row].kept.end()))
            << spec << " row " << row;
        ASSERT_TRUE(
            std::includes(before.begin(), before.end(), rows[row].visible.begin(), rows[row].visible.end()))
            << spec << " row " << row;
        before = rows[row].kept;
    }
}

void compare(const Observed& text, const PolicyCase& c, Tally& tally) {
    const std::vector<Simulated> engine = run_engine_scores(text, c.spec, text.n_rows - text.n_prompt);
    for (const Readers& unit : selected_together(text, c.unit)) {
        const Simulated expected = c.simulate(text, unit, c.noise);
        for (const auto& [layer, g] : unit.kv_heads) {
            const Simulated& got = engine[keyhole::to_index(layer * text.n_kv_heads + g)];
            expect_nested(got, c.spec);
            const Difference difference = compare_rows(got, expected, 0, 2e-5);
            tally.n_rows += text.n_rows;
            tally.n_choices += difference.n_choices;
            tally.n_near_ties += difference.near_tie;
            tally.least_margin = std::min(tally.least_margin, difference.least_margin);
            if (difference.near_tie) continue;
            ASSERT_EQ(difference.what, "")
                << c.spec << ", prompt " << text.n_prompt << ", layer " << layer << ", KV head " << g;
        }
    }
}

struct Shape {
    int n_prompt, n_kv_heads;
};

class Dialects : public ::testing::TestWithParam<Shape> {
  protected:
    Observed text(std::uint64_t seed) const {
        return random_logits(2, 4, GetParam().n_kv_heads, GetParam().n_prompt, GetParam().n_prompt + kDecode,
                             3, seed + 100 * static_cast<std::uint64_t>(GetParam().n_prompt));
    }
    void check(const std::vector<PolicyCase>& cases, std::uint64_t seed) {
        const Observed given = text(seed);
        for (const PolicyCase& c : cases) {
            compare(given, c, tally_);
            if (HasFatalFailure()) return;
        }
    }
    void TearDown() override {
        RecordProperty("rows", tally_.n_rows);
        RecordProperty("near_ties", tally_.n_near_ties);
        RecordProperty("least_margin", fmt::format("{:.1e}", tally_.least_margin));
        EXPECT_GT(tally_.n_choices, 0);
        EXPECT_LE(tally_.n_near_ties, 1 + tally_.n_choices / 10000) << "of " << tally_.n_choices;
    }
    Tally tally_;
};

TEST_P(Dialects, CpuKeepsWhatTheSimulationKeeps) {
    // Budgets of zero, one, a few, about the prompt, and the whole text or more.
    for (int k : {0, 1, 2, 3, 6, 9, GetParam().n_prompt, GetParam().n_prompt + kDecode - 1,
                  GetParam().n_prompt + kDecode, 500})
        check(policy_cases(k, kDecode), static_cast<std::uint64_t>(k));
}

TEST_P(Dialects, SharesOfThePromptAreTruncatedAsEachCodeDoes) {
    check(percent_cases(GetParam().n_prompt, kDecode), 77);
}

INSTANTIATE_TEST_SUITE_P(Random, Dialects,
                         ::testing::Values(Shape{1, 4}, Shape{1, 1}, Shape{2, 2}, Shape{5, 4}, Shape{11, 4},
                                           Shape{11, 2}, Shape{11, 1}, Shape{24, 2}),
                         [](const ::testing::TestParamInfo<Shape>& s) {
                             return fmt::format("Prompt{}Kv{}", s.param.n_prompt, s.param.n_kv_heads);
                         });

// A text of 100 tokens, where 29 % and 58 % distinguish the two ways of truncation.
TEST(DialectsOfALongPrompt, SharesAreTruncatedAsEachCodeDoes) {
    Tally tally;
    const Observed text = random_logits(1, 2, 2, 100, 104, 3, 5);
    for (const PolicyCase& c : percent_cases(100, 4)) compare(text, c, tally);
    EXPECT_GT(tally.n_choices, 0);
}

// Policies, section 1, ties: exp(-120) is 0 as a float. Exact arithmetic would rank such tokens; here the
// older ones leave. Denormal numbers, such as exp(-95), are ranked.
TEST(Underflow, TheOlderOfTwoTokensLeaves) {
    const auto kept_by = [](const std::array<double, 6>& last) {
        Observed text = random_logits(1, 1, 1, 6, 6, 3, 1);
        for (int p = 0; p < 6; ++p) text.logit(5, 0, 0, p) = last[keyhole::to_index(p)];
        const Simulated exact = tova(text, selected_together(text, Unit::head)[0], 4, {}, PoolOver::mean, {});
        EXPECT_EQ(exact[5].kept, (PositionSet{1, 3, 4, 5}));
        const PositionSet kept = run_engine_scores(text, "tova:budget=4,scope=head", 1)[0][5].kept;
        return std::vector<int>(kept.begin(), kept.end());
    };
    EXPECT_EQ(kept_by({-133, -120, -140, -5, -6, 0}), (std::vector<int>{2, 3, 4, 5}));
    EXPECT_EQ(kept_by({-100, -95, -103, -5, -6, 0}), (std::vector<int>{1, 3, 4, 5}));
}

/// One lane under four policies in turn; all scores accumulate all the time.
struct Steered {
    std::vector<Turn> turns;
    std::vector<Regime> regimes;
};
Steered through_four_policies() {
    const KeyformerScore gumbel{linear_tau(1, 2, 24), drawn_noise(Noise::gumbel, false, 1), 1, 1};
    return {{{0, "h2o:budget=9,recent=4"},
             {20, "a2sf:budget=8,alpha=0.5"},
             {24, "keyformer:budget=7,recent=2"},
             {29, "tova:budget=6,scope=head"},
             {33, "h2o:budget=9,recent=2"}},
            {{0, By::sum, 9, {0, 4}},
             {20, By::forgetting, 8, {}, 0.5},
             {24, By::tempered, 7, {0, 2}, 1, gumbel},
             {29, By::forgetting, 6, {}, 0},
             {33, By::sum, 9, {0, 2}}}};
}

void expect_steered(const Steered& lane, const std::vector<ManualChange>& hands, int n_kv_heads,
                    std::uint64_t seed) {
    const Observed text = random_logits(2, 4, n_kv_heads, 16, 40, 3, seed);
    const std::vector<Simulated> engine = run_engine_scores(text, lane.turns, hands, 24);
    int n_choices = 0;
    for (const Readers& unit : selected_together(text, Unit::head)) {
        const Simulated expected = steered(text, unit, lane.regimes, hands, PoolOver::mean);
        const auto [layer, g] = unit.kv_heads.front();
        const Difference difference =
            compare_rows(engine[keyhole::to_index(layer * n_kv_heads + g)], expected, 0, 2e-5);
        n_choices += difference.n_choices;
        if (difference.near_tie) continue;
        ASSERT_EQ(difference.what, "") << "layer " << layer << ", KV head " << g << ", seed " << seed;
    }
    EXPECT_GT(n_choices, 20);
}

TEST(SteeredLanes, APolicySwitchedOnFindsItsScoresRunning) {
    for (std::uint64_t seed = 0; seed < 8; ++seed)
        for (int n_kv_heads : {4, 2, 1}) expect_steered(through_four_policies(), {}, n_kv_heads, seed);
}

TEST(SteeredLanes, TokensEvictedAndPinnedByHand) {
    const Steered h2o{{{0, "h2o:budget=9,recent=3"}}, {{0, By::sum, 9, {0, 3}}}};
    // 14 and 15 are among the newest after row 15, 19 and 22 after their rows: they are stored for any
    // scores.
    const std::vector<ManualChange> hands = {{15, ManualChange::pin, 14},   {15, ManualChange::evict, 15},
                                             {19, ManualChange::pin, 19},   {22, ManualChange::pin, 22},
                                             {28, ManualChange::unpin, 14}, {31, ManualChange::evict, 19}};
    for (std::uint64_t seed = 0; seed < 8; ++seed)
        for (int n_kv_heads : {4, 1}) {
            expect_steered(h2o, hands, n_kv_heads, seed);
            Steered both = through_four_policies();
            expect_steered(
                both,
                {{15, ManualChange::pin, 14}, {19, ManualChange::pin, 19}, {30, ManualChange::unpin, 14}},
                n_kv_heads, seed);
        }
}

}  // namespace
}  // namespace reference::test_dialects
