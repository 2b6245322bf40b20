#include "engine/analysis/opening_head.h"
#include "engine/base/index.h"
#include "tests/reference/synthetic_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <vector>

namespace keyhole::test_opening_head {
namespace {

RunHistory history_of(const StepList& steps) {
    RunHistory history;
    history.update(steps);
    return history;
}

/// Returns the head with the most of lane 0's attention to the positions that `counts` names: in sum, or to
/// one of them.
HeadPlace by_hand(const RunHistory& history, bool sums,
                  const std::function<bool(int kv_head, int position)>& counts) {
    const int row = history.n_prompt() - 1;
    const ModelConfig& config = history.run().config;
    HeadPlace best;
    float most = 0;
    for (int l = 0; l < config.n_layers; ++l)
        for (int h = 0; h < config.n_heads; ++h) {
            std::vector<float> values(to_index(row + 1));
            EXPECT_TRUE(history.attention_row(0, row, l, h, values));
            float value = 0;
            for (int p = 0; p <= row; ++p)
                if (counts(history.layout(1).kv_head_from_head(l, h), p))
                    value = sums ? value + values[to_index(p)] : std::max(value, values[to_index(p)]);
            if (value > most) most = value, best = {l, h};
        }
    EXPECT_GT(most, 0);
    return best;
}

TEST(OpeningHead, AttendsMostToTheWatchedWords) {
    const RunHistory history = history_of(testing::synthetic_run({.budgets = {0, 16}}));
    std::vector<HeadPlace> seen;
    for (const TokenSpan span : {TokenSpan{2, 3}, {12, 15}, {20, 20}}) {
        const HeadPlace place = by_hand(history, true, [&](int, int p) { return span.holds(p); });
        EXPECT_EQ(opening_head(history, 1, span), place);
        EXPECT_EQ(opening_head(history, 0, span), place) << "eviction does not matter then";
        seen.push_back(place);
    }
    EXPECT_FALSE(seen[0] == seen[1] && seen[1] == seen[2]) << "the example cannot tell heads apart";
}

TEST(OpeningHead, LosesMostAttentionToEviction) {
    const RunHistory history = history_of(testing::synthetic_run({.budgets = {0, 16}}));
    const int row = history.n_prompt() - 1;
    const HeadPlace place =
        by_hand(history, false, [&](int g, int p) { return !history.stored(1, g, p, row); });
    EXPECT_EQ(opening_head(history, 1, std::nullopt), place);
    EXPECT_EQ(opening_head(history, 1, TokenSpan{500, 501}), place) << "no head attends to these words";
    EXPECT_EQ(opening_head(history, 0, std::nullopt), std::nullopt) << "the full cache evicts nothing";
}

}  // namespace
}  // namespace keyhole::test_opening_head
