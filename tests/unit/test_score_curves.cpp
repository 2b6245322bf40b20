#include "engine/analysis/score_curves.h"

#include "engine/analysis/run_rows.h"
#include "engine/analysis/token_class.h"
#include "engine/base/index.h"
#include "tests/reference/synthetic_run.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace keyhole::test_score_curves {
namespace {

constexpr int kLane = 1, kHead = 2;  // with a budget of 16 tokens

TEST(ScoreCurves, HoldTheScoreOfEachRowAndGoOnWithNewRows) {
    const StepList steps = testing::synthetic_run({});
    const std::vector<int> positions = {3, 20, 60};
    RunHistory history;
    history.update(StepList(steps.begin(), steps.begin() + 12));
    ScoreCurves curves;
    curves.update(history, kLane, kHead, positions);
    EXPECT_EQ(curves.threshold.size(), 12u);
    history.update(steps);
    curves.update(history, kLane, kHead, positions);
    ASSERT_EQ(curves.scores.size(), positions.size());
    int n_known = 0;
    for (std::size_t i = 0; i < steps.size(); ++i) {
        const int row = steps[i]->row;
        std::vector<float> values(to_index(row) + 1);
        const bool known = score_values(history, kLane, row, kHead, values);
        for (std::size_t c = 0; c < positions.size(); ++c) {
            const float shown = curves.scores[c][i];
            if (!known || positions[c] > row || std::isnan(values[to_index(positions[c])])) {
                EXPECT_TRUE(std::isnan(shown)) << row;
            } else {
                EXPECT_EQ(shown, values[to_index(positions[c])]) << row;
                ++n_known;
            }
        }
    }
    EXPECT_GT(n_known, 5) << "most of these tokens are evicted";
    curves.update(history, kLane, kHead, {5});
    EXPECT_EQ(curves.scores.size(), 1u);
    EXPECT_EQ(curves.scores[0].size(), steps.size());
}

TEST(ScoreCurves, TellingTokensAreTheHighestKeptAndEvictedOnes) {
    const StepList steps = testing::synthetic_run({});
    RunHistory history;
    history.update(steps);
    const int row = history.last_row();
    const std::vector<int> telling = telling_positions(history, kLane, kHead, row);
    ASSERT_GE(telling.size(), 1u);
    EXPECT_TRUE(history.stored(kLane, kHead, telling.front(), row));
    std::vector<float> scores(to_index(row) + 1);
    ASSERT_TRUE(history.score_row(kLane, row, kHead, scores));
    const std::vector<TokenClass> classes =
        token_classes(history.run(), history.lanes()[to_index(kLane)].tokens);
    const auto is_word = [&](int p) {
        return classes[to_index(p)] == TokenClass::word_start || classes[to_index(p)] == TokenClass::number;
    };
    ASSERT_TRUE(is_word(telling.front()));
    for (int p = 4; p <= row; ++p)
        if (is_word(p) && history.stored(kLane, kHead, p, row) && !std::isnan(scores[to_index(p)])) {
            EXPECT_LE(scores[to_index(p)], scores[to_index(telling.front())]) << p;
        }
    if (telling.size() == 2) {
        EXPECT_FALSE(history.stored(kLane, kHead, telling[1], row));
    }
}

}  // namespace
}  // namespace keyhole::test_score_curves
