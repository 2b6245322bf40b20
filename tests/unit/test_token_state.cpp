// A token's state, read from records: against the made-up run, with added hidden positions, pins and
// commands.
#include "engine/analysis/token_state.h"

#include "engine/analysis/run_rows.h"
#include "engine/base/index.h"
#include "tests/reference/synthetic_run.h"

#include <gtest/gtest.h>

#include <cmath>

namespace keyhole::test_token_state {
namespace {

using testing::synthetic_run;

RunHistory history_of(const StepList& steps) {
    RunHistory history;
    history.update(steps);
    return history;
}

/// Returns a changed copy of a row's record.
void change(StepList& steps, int row, auto&& how) {
    for (auto& step : steps)
        if (step->row == row) {
            auto changed = std::make_shared<StepTrace>(*step);
            how(*changed);
            step = changed;
        }
}

/// Hides one position of KV head 0 of lane 1 from a row.
void hide(StepList& steps, int row, int position) {
    const RunHistory before = history_of(steps);
    const int n_kv = before.run().layout.n_kv_heads();
    auto hidden = std::make_shared<HiddenSet>();
    hidden->offset.push_back(0);
    for (int g = 0; g < n_kv; ++g) {
        const auto held = before.held_positions(1, g, row);
        hidden->bits.resize(hidden->bits.size() + (held.size() + 7) / 8, 0);
        for (std::size_t i = 0; i < held.size(); ++i)
            if (g == 0 && held[i] == position) hidden->bits[i / 8] |= static_cast<std::uint8_t>(1 << (i % 8));
        hidden->offset.push_back(static_cast<std::int32_t>(hidden->bits.size()));
    }
    change(steps, row, [&](StepTrace& step) { step.lanes[1].hidden = hidden; });
}

TEST(TokenState, RankAndMarginSayWhoLeaves) {
    const RunHistory history =
        history_of(synthetic_run({.n_prompt = 40, .n_decoded = 30, .budgets = {0, 16}}));
    const KvLayout& layout = history.run().layout;
    int n_left = 0;
    for (int row = 40; row <= history.last_row(); ++row)
        for (int l = 0; l < layout.n_layers(); ++l)
            for (int h = 0; h < layout.n_heads(); ++h) {
                const int g = layout.kv_head_from_head(l, h);
                std::vector<int> ranks;
                for (int p = 0; p <= row; ++p) {
                    const auto standing = competition(history, 1, l, h, p, row);
                    ASSERT_TRUE(standing);
                    const bool leaves = history.evicted_at(1, g, p) == row;
                    n_left += leaves;
                    if (leaves) {
                        EXPECT_TRUE(standing->competes) << standing->why_not;
                        EXPECT_EQ(standing->rank, standing->n);
                        EXPECT_LT(standing->margin, 0);
                        EXPECT_EQ(presence(history, 1, g, p, row), TokenPresence::leaving);
                        EXPECT_EQ(presence(history, 1, g, p, row + 1), TokenPresence::evicted);
                        EXPECT_EQ(eviction_cause(history, 1, g, p), "by the policy h2o");
                    }
                    if (standing->competes) ranks.push_back(standing->rank);
                    if (p > row - 8) {
                        EXPECT_NE(standing->why_not.find("newest"), std::string::npos) << p << " " << row;
                    }
                }
                std::sort(ranks.begin(), ranks.end());
                for (std::size_t i = 0; i < ranks.size(); ++i) EXPECT_EQ(ranks[i], static_cast<int>(i) + 1);
                EXPECT_EQ(ranks.size(), 9u);  // 17 attended, 8 newest protected
            }
    EXPECT_GT(n_left, 100);
    const auto of_full = competition(history, 0, 0, 0, 3, 45);
    ASSERT_TRUE(of_full);
    EXPECT_FALSE(of_full->competes);
    EXPECT_EQ(eviction_cause(history, 0, 0, 3), "");
}

TEST(TokenState, HiddenTokensDifferFromEvictedOnes) {
    StepList steps = synthetic_run({.n_prompt = 40, .n_decoded = 10, .budgets = {0, 16}});
    const int row = 45, position = history_of(steps).attended_positions(1, 0, row).at(3);
    hide(steps, row, position);
    const RunHistory history = history_of(steps);
    EXPECT_EQ(presence(history, 1, 0, position, row), TokenPresence::hidden);
    EXPECT_EQ(presence(history, 1, 1, position, row) == TokenPresence::hidden, false);
    EXPECT_NE(presence(history, 1, 0, position, row - 1), TokenPresence::hidden);
    EXPECT_NE(presence_text(history, 1, 0, position, row).find("hidden"), std::string::npos);
    std::vector<float> one(row + 1);
    const HeadRef reader = history.run().layout.kv_head(0).readers.front();
    ASSERT_TRUE(attention_values(history, 1, row, reader.layer, reader.head, one));
    int n_hidden = 0;
    for (int p = 0; p <= row; ++p) n_hidden += one[to_index(p)] == kHiddenValue;
    EXPECT_EQ(n_hidden, 1);
    EXPECT_EQ(one[to_index(position)], kHiddenValue);
    attention_values_of_all(history, 1, row, [&](int layer, int head, std::span<const float> values) {
        if (layer != reader.layer || head != reader.head) return;
        for (std::size_t p = 0; p < values.size(); ++p)
            EXPECT_TRUE(values[p] == one[p] || (std::isnan(values[p]) && std::isnan(one[p]))) << p;
    });
}

TEST(TokenState, PinsDoNotCompete) {
    StepList steps = synthetic_run({.n_prompt = 40, .n_decoded = 10, .budgets = {0, 16}});
    const int row = 45, position = history_of(steps).attended_positions(1, 0, row).at(3);
    change(steps, row, [&](StepTrace& step) {
        step.lanes[1].pins = std::make_shared<const PinList>(PinList{{0, position}});
    });
    const RunHistory history = history_of(steps);
    const HeadRef reader = history.run().layout.kv_head(0).readers.front();
    const auto standing = competition(history, 1, reader.layer, reader.head, position, row);
    ASSERT_TRUE(standing);
    EXPECT_EQ(standing->why_not, "pinned");
    EXPECT_EQ(standing->n, 8);
    EXPECT_NE(presence_text(history, 1, 0, position, row).find("pinned"), std::string::npos);
}

TEST(TokenState, SaysWhoTookAToken) {
    const auto cause = [](const std::vector<std::string>& commands) {
        StepList steps = synthetic_run({.n_prompt = 40, .n_decoded = 10, .budgets = {0, 16}});
        const auto held = history_of(steps).held_positions(1, 2, 46);
        int position = -1;  // one that no policy evicts
        for (int p : held)
            if (history_of(steps).evicted_at(1, 2, p) < 0) position = p;
        change(steps, 46, [&](StepTrace& step) {
            step.lanes[1].evictions.push_back({2, position, 45});
            for (std::string text : commands) {
                const std::size_t at = text.find("POS");
                if (at != std::string::npos) text.replace(at, 3, std::to_string(position));
                step.commands.push_back(text);
            }
        });
        return eviction_cause(history_of(steps), 1, 2, position);
    };
    const HeadRef reader = history_of(synthetic_run({.n_prompt = 40, .n_decoded = 10, .budgets = {0, 16}}))
                               .run()
                               .layout.kv_head(2)
                               .readers.front();
    const std::string here = " L" + std::to_string(reader.layer) + ".H" + std::to_string(reader.head);
    EXPECT_EQ(cause({"evict 1 POS" + here}).find("by hand (evict 1 "), 0u);
    EXPECT_EQ(cause({"evict 1 POS"}).find("by hand"), 0u);
    EXPECT_EQ(cause({"evict 0 POS", "lane 1 h2o:budget=8"}), "by a change (lane 1 h2o:budget=8)");
    EXPECT_EQ(cause({"evict 1 1", "follow off"}), "by a command");
    EXPECT_EQ(cause({"evict 1 POS L" + std::to_string(reader.layer + 1)}), "by a command");  // another layer
}

TEST(TokenState, SumsTheAttentionOfARowToSeveralTokens) {
    const RunHistory history =
        history_of(synthetic_run({.n_prompt = 40, .n_decoded = 10, .budgets = {0, 16}}));
    const int row = 45;
    std::vector<int> positions = {3, 7, 12, 44, 47};
    for (const int lane : {0, 1}) {
        double sum = 0;
        int seen = 0;
        for (const int p : positions) {
            if (!history.attended(lane, history.layout(lane).kv_head_from_head(1, 2), p, row)) continue;
            sum += double(testing::synthetic_attention(row, 1, 2, p));
            ++seen;
        }
        const auto together = attention_sum(history, lane, row, 1, 2, positions);
        ASSERT_TRUE(together);
        EXPECT_NEAR(together->sum, sum, 2e-3 * sum);
        EXPECT_EQ(together->n_seen, seen);
        EXPECT_EQ(together->n, 4);
        EXPECT_EQ(lane == 0, seen == 4);
    }
    StepList bare = synthetic_run({.n_prompt = 40, .n_decoded = 10, .budgets = {0, 16}});
    change(bare, row, [](StepTrace& step) { step.lanes[1].rows = nullptr; });
    EXPECT_FALSE(attention_sum(history_of(bare), 1, row, 1, 2, positions));
}

}  // namespace
}  // namespace keyhole::test_token_state
