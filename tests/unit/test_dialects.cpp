// The engine's scoring and selection against the simulations of every policy and dialect, on random logits: kept and visible sets and
// scores, row by row and head by head.
#include "tests/reference/engine_scores.h"
#include "tests/reference/policy_cases.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace reference {
namespace {

constexpr int kDecode = 14;

struct Tally {
    int n_rows = 0, n_choices = 0, n_near_ties = 0;
    double least_margin = 1;
};

/// Sets nest, and no unit grows without a row.
void expect_nested(const Simulated& rows, const std::string& spec) {
    std::set<int> before;
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
            const Simulated& got = engine[static_cast<std::size_t>(layer * text.n_kv_heads + g)];
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

class Dialects : public testing::TestWithParam<Shape> {
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
    // Zero, one, few, about the prompt, and as much as or more than the text will ever have.
    for (int k : {0, 1, 2, 3, 6, 9, GetParam().n_prompt, GetParam().n_prompt + kDecode - 1,
                  GetParam().n_prompt + kDecode, 500})
        check(policy_cases(k, kDecode), static_cast<std::uint64_t>(k));
}

TEST_P(Dialects, SharesOfThePromptAreTruncatedAsEachCodeDoes) {
    check(percent_cases(GetParam().n_prompt, kDecode), 77);
}

INSTANTIATE_TEST_SUITE_P(Random, Dialects,
                         testing::Values(Shape{1, 4}, Shape{1, 1}, Shape{2, 2}, Shape{5, 4}, Shape{11, 4},
                                         Shape{11, 2}, Shape{11, 1}, Shape{24, 2}),
                         [](const testing::TestParamInfo<Shape>& s) {
                             return fmt::format("Prompt{}Kv{}", s.param.n_prompt, s.param.n_kv_heads);
                         });

// A text of 100 tokens, where 29 % and 58 % tell the two ways of truncating apart.
TEST(DialectsOfALongPrompt, SharesAreTruncatedAsEachCodeDoes) {
    Tally tally;
    const Observed text = random_logits(1, 2, 2, 100, 104, 3, 5);
    for (const PolicyCase& c : percent_cases(100, 4)) compare(text, c, tally);
    EXPECT_GT(tally.n_choices, 0);
}

}  // namespace
}  // namespace reference
