// What a selection met: scores that are no numbers, and equal ones at the cut, from records.
#include "engine/analysis/selection_counts.h"
#include "engine/policy/lane_spec.h"
#include "tests/reference/session_run.h"
#include "tests/reference/tiny_model.h"

#include <gtest/gtest.h>

namespace reference::test_selection_counts {
namespace {

using namespace keyhole;

class SelectionCountsOf : public ::testing::Test {
  protected:
    /// Runs 20 tokens of prompt and 6 more with a lane beside a full one.
    RunHistory run(const std::string& lane) {
        RunSpec spec;
        for (int i = 0; i < 20; ++i) spec.prompt_tokens.push_back(i * 11 % 250);
        spec.lanes = {parse_lane_spec("full"), parse_lane_spec(lane)};
        spec.n_generate = 6;
        spec.ignore_eos = spec.follow = true;
        spec.requested.attention = spec.requested.scores = true;
        spec.requested.form = RowForm::both;
        return history_of(run_session(load_model(tiny_.folder()), spec));
    }
    TinyModel tiny_{{}};
};

// 4 KV heads rank 20 tokens of the prompt each, and keep 8.
TEST_F(SelectionCountsOf, NaNIsCountedAndRanksLowest) {
    const RunHistory history = run("key:budget=8,choose=(position<12 ? position : (position-position)/0)");
    const auto counts = last_selection(history, 1, 19);
    ASSERT_TRUE(counts);
    EXPECT_EQ(counts->row, 19);
    EXPECT_EQ(counts->n_heads, 4);
    EXPECT_EQ(counts->n_ranked, 80);
    EXPECT_EQ(counts->n_nan, 32) << "tokens 12 to 19";
    EXPECT_EQ(counts->n_nan_heads, 4);
    EXPECT_EQ(counts->first_nan_head, 0);
    EXPECT_EQ(counts->n_tied, 0);
    for (int g = 0; g < 4; ++g) {
        EXPECT_TRUE(history.stored(1, g, 11, 20));
        EXPECT_FALSE(history.stored(1, g, 12, 20)) << "NaN leaves before the least number";
        EXPECT_FALSE(history.stored(1, g, 3, 20));
    }
    EXPECT_EQ(
        selection_words(*counts, history.layout(1)),
        "At the selection after row 19: 32 of 80 scores are NaN, first in L0 KV head 0, and rank lowest.");
}

TEST_F(SelectionCountsOf, TiesAtTheCutAreCounted) {
    // 4 tokens have 1, 16 have 0: 4 of these stay.
    const RunHistory history = run("key:budget=8,choose=(position<4 ? 1 : 0)");
    const auto counts = last_selection(history, 1, 19);
    ASSERT_TRUE(counts);
    EXPECT_EQ(counts->n_nan, 0);
    EXPECT_EQ(counts->n_tied, 4 * 16);
    EXPECT_EQ(counts->n_tied_heads, 4);
    for (int g = 0; g < 4; ++g) {
        EXPECT_TRUE(history.stored(1, g, 16, 19)) << "the newer of equal ones stay";
        EXPECT_FALSE(history.stored(1, g, 15, 19));
    }
    EXPECT_EQ(selection_words(*counts, history.layout(1)),
              "At the selection after row 19: 64 of 80 tokens tie at the cut, in 4 of 4 KV heads; of equal "
              "ones the newer stay.");
}

TEST_F(SelectionCountsOf, InfinityCompetesAsItself) {
    const RunHistory history = run("key:budget=8,choose=(position<4 ? 1/0 : position<12 ? -1/0 : 0)");
    const auto counts = last_selection(history, 1, 19);
    ASSERT_TRUE(counts);
    EXPECT_EQ(counts->n_nan, 0);
    for (int g = 0; g < 4; ++g) {
        for (const int p : {0, 3, 16, 19}) EXPECT_TRUE(history.stored(1, g, p, 19)) << p;
        EXPECT_FALSE(history.stored(1, g, 4, 20));
    }
}

TEST_F(SelectionCountsOf, NothingIsSaidOfPlainScores) {
    const RunHistory history = run("h2o:budget=8");
    const auto counts = last_selection(history, 1, history.last_row());
    ASSERT_TRUE(counts);
    EXPECT_EQ(counts->row, history.last_row()) << "the newest selection up to the row";
    EXPECT_EQ(counts->n_nan + counts->n_tied, 0);
    EXPECT_EQ(selection_words(*counts, history.layout(1)), "");
    EXPECT_FALSE(last_selection(history, 0, 19)) << "a full lane never selects";
}

}  // namespace
}  // namespace reference::test_selection_counts
