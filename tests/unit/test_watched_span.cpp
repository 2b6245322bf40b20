#include "engine/analysis/watched_span.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "tests/reference/synthetic_run.h"

#include <gtest/gtest.h>

#include <cmath>

namespace keyhole::test_watched_span {
namespace {

constexpr int kFirst = 12, kLast = 15;

RunHistory history_of(const StepList& steps) {
    RunHistory history;
    history.update(steps);
    return history;
}

TEST(WatchedSpan, IsFoundAcrossTokens) {
    const RunHistory history = history_of(testing::synthetic_run({}));
    // The prompt is tokens 0, 7, 2, 9, 4, 11, 6, ... of the synthetic vocabulary.
    EXPECT_EQ(find_span(history, 0, "gate code"), (TokenSpan{2, 3}));
    EXPECT_EQ(find_span(history, 0, " an four"), (TokenSpan{4, 5}));
    EXPECT_EQ(find_span(history, 0, "ate co", 3), (TokenSpan{14, 15}));  // the next occurrence
    EXPECT_EQ(find_span(history, 0, "ate co", 69), (TokenSpan{2, 3}));   // and from the start again
    EXPECT_EQ(find_span(history, 0, "castle"), std::nullopt);
    EXPECT_EQ(find_span(history, 0, ""), std::nullopt);
    EXPECT_EQ(find_span_before(history, 0, "ate co", 14), (TokenSpan{2, 3}));
    EXPECT_EQ(find_span_before(history, 0, "ate co", 15), (TokenSpan{14, 15})) << "it begins before";
    const std::optional<TokenSpan> last = find_span_before(history, 0, "ate co", 2);
    ASSERT_TRUE(last) << "from the end again";
    EXPECT_EQ(last, find_span_before(history, 0, "ate co", 1000));
    EXPECT_GE(last->first, 14);
    EXPECT_EQ(find_span_before(history, 0, "castle", 9), std::nullopt);
    EXPECT_EQ(find_span_before(history, 0, "", 9), std::nullopt);
}

TEST(WatchedSpan, SharesAreWhatTheTableSays) {
    const RunHistory history = history_of(testing::synthetic_run({.budgets = {0, 16}}));
    const TokenSpan span{kFirst, kLast};
    for (const int row : {39, 45, 60, 69})
        for (int g = 0; g < history.run().layout.n_kv_heads(); ++g) {
            int n = 0;
            for (int p = kFirst; p <= kLast; ++p) n += history.stored(1, g, p, row) ? 1 : 0;
            EXPECT_EQ(span_share(history, 1, g, span, row), float(n) / 4) << row << " " << g;
            EXPECT_EQ(span_share(history, 0, g, span, row), 1);
        }
    EXPECT_TRUE(std::isnan(span_share(history, 1, 0, {65, 66}, 60)));
    EXPECT_EQ(span_share(history, 0, 0, {60, 66}, 62), 1);  // the share of existing positions
}

TEST(WatchedSpan, IsLostWhenNoHeadHasAllOfIt) {
    const RunHistory history = history_of(testing::synthetic_run({.budgets = {0, 16, 30}}));
    const TokenSpan span{kFirst, kLast};
    const int n_kv = history.run().layout.n_kv_heads();
    for (const int lane : {1, 2}) {
        const SpanLifetime lifetime = span_lifetime(history, lane, span);
        ASSERT_EQ(lifetime.share.size(), history.steps().size());
        std::optional<int> lost, gone;
        for (const auto& step : history.steps()) {
            bool whole = false, some = false;
            for (int g = 0; g < n_kv; ++g) {
                whole = whole || span_share(history, lane, g, span, step->row) == 1;
                some = some || span_share(history, lane, g, span, step->row) > 0;
            }
            float sum = 0;
            for (int g = 0; g < n_kv; ++g) sum += span_share(history, lane, g, span, step->row);
            EXPECT_NEAR(lifetime.share[to_index(step->row - history.steps().front()->row)],
                        sum / static_cast<float>(n_kv), 1e-6);
            if (!whole && !lost) lost = step->row;
            if (!some && !gone) gone = step->row;
        }
        EXPECT_EQ(lifetime.no_head_has_all, lost) << lane;
        EXPECT_EQ(lifetime.all_gone, gone) << lane;
        int n_whole = 0;
        for (int g = 0; g < n_kv; ++g)
            n_whole += span_share(history, lane, g, span, history.last_row()) == 1 ? 1 : 0;
        EXPECT_EQ(lifetime.n_heads_with_all, n_whole);
        EXPECT_EQ(lifetime.n_heads, n_kv);
    }
    EXPECT_TRUE(span_lifetime(history, 1, span).no_head_has_all.has_value());
    const SpanLifetime full = span_lifetime(history, 0, span);
    EXPECT_FALSE(full.no_head_has_all || full.all_gone || full.first_other_token);
    EXPECT_EQ(full.share.back(), 1);
}

TEST(WatchedSpan, SaysWhenTheLaneFirstSaysAnother) {
    StepList steps = testing::synthetic_run({.budgets = {0, 16}});
    auto changed = std::make_shared<StepTrace>(*steps[9]);
    changed->lanes[1].predicted = (changed->lanes[1].predicted + 1) % 12;
    steps[9] = changed;
    EXPECT_EQ(span_lifetime(history_of(steps), 1, {kFirst, kLast}).first_other_token, changed->row);
    EXPECT_FALSE(span_lifetime(history_of(steps), 1, {kFirst, kLast}).unknown_until);
    // Of steps without a record of the lane it is not known what it would have said.
    for (int i : {4, 5}) {
        auto without = std::make_shared<StepTrace>(*steps[to_index(i)]);
        without->lanes.pop_back();
        steps[to_index(i)] = without;
    }
    const SpanLifetime lifetime = span_lifetime(history_of(steps), 1, {kFirst, kLast});
    EXPECT_EQ(lifetime.first_other_token, changed->row);
    EXPECT_EQ(lifetime.unknown_until, steps[5]->row);
    const std::string verdict = span_verdict(lifetime);
    EXPECT_NE(verdict.find(fmt::format("; word at {} unlike lane 0's, none recorded before {}",
                                       changed->row + 1, steps[5]->row + 2)),
              std::string::npos)
        << verdict;
}

TEST(WatchedSpan, VerdictSaysWhatWasLostAndWhatWasSaid) {
    SpanLifetime lifetime;
    lifetime.n_heads = lifetime.n_heads_with_all = 48;
    EXPECT_EQ(span_verdict(lifetime), "every head holds all of it");
    lifetime.n_heads_with_all = 1;
    EXPECT_EQ(span_verdict(lifetime), "1 of 48 heads hold all of it");
    lifetime.first_other_token = 370;
    EXPECT_EQ(span_verdict(lifetime), "1 of 48 heads hold all of it; first word unlike lane 0's at 371");
    lifetime.n_heads_with_all = 0;
    lifetime.no_head_has_all = 381;
    EXPECT_EQ(span_verdict(lifetime),
              "no head has held all of it since step 381; first word unlike lane 0's at 371");
}

}  // namespace
}  // namespace keyhole::test_watched_span
