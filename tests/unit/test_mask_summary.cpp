// Sums over the mask's blocks against RunHistory, cell by cell.
#include "engine/analysis/mask_summary.h"
#include "engine/base/index.h"
#include "tests/reference/synthetic_run.h"

#include <gtest/gtest.h>

#include <memory>

namespace keyhole::test_mask_summary {
namespace {

/// Returns 2 * (evicted cells) + (1 if a row saw a token for the last time), by reading every cell.
std::int32_t counted(const RunHistory& history, int lane, int head, int x, int y, int block) {
    std::int32_t gone = 0;
    bool last_seen = false;
    for (int i = y * block; i < std::min((y + 1) * block, history.n_positions()); ++i)
        for (int p = x * block; p < std::min((x + 1) * block, i + 1); ++p) {
            gone += !history.attended(lane, head, p, i);
            last_seen = last_seen || history.evicted_at(lane, head, p) == i;
        }
    return 2 * gone + (last_seen ? 1 : 0);
}

void expect_counted(const MaskSummary& summary, const RunHistory& history, int lane, int factor) {
    for (int j = 0; j < summary.n_levels(); ++j) {
        const int side = summary.side() >> j;
        ASSERT_EQ(summary.level(j).size(), to_index(summary.n_heads() * side * side));
        for (int g = 0; g < summary.n_heads(); ++g)
            for (int y = 0; y < side; ++y)
                for (int x = 0; x < side; ++x)
                    ASSERT_EQ(summary.level(j)[to_index((g * side + y) * side + x)],
                              counted(history, lane, g, x, y, factor << j))
                        << "level " << j << ", head " << g << ", block " << x << " " << y << ", row "
                        << history.last_row();
    }
}

StepList upto(const StepList& steps, std::size_t n) {
    return {steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(n)};
}

TEST(MaskSummary, IsWhatTheCellsAre) {
    const StepList steps = testing::synthetic_run({.n_layers = 2,
                                                   .n_heads = 2,
                                                   .n_kv_heads = 2,
                                                   .n_prompt = 21,
                                                   .n_decoded = 30,
                                                   .budgets = {0, 9, 16}});
    for (const auto& [side, factor] : {std::pair(64, 1), std::pair(16, 4), std::pair(32, 2)})
        for (int lane = 0; lane < 3; ++lane) {
            RunHistory history;
            history.update(steps);
            MaskSummary whole;
            whole.update(history, lane, side, factor);
            EXPECT_TRUE(whole.take_changes().all);
            expect_counted(whole, history, lane, factor);
            // While the run grows: equal sums, and only blocks of the new row are reported as changed.
            RunHistory grown;
            MaskSummary summary;
            for (std::size_t n = 1; n <= steps.size(); ++n) {
                grown.update(upto(steps, n));
                summary.update(grown, lane, side, factor);
                const MaskSummary::Changes changes = summary.take_changes();
                EXPECT_EQ(changes.all, n == 1);
                if (n == 1) continue;
                EXPECT_EQ(changes.last, grown.last_row() / factor);
                EXPECT_EQ(changes.first, (grown.last_row() - 1) / factor);
                expect_counted(summary, grown, lane, factor);
            }
            summary.update(grown, lane, side, factor);
            EXPECT_LT(summary.take_changes().last, summary.take_changes().first) << "nothing is new";
        }
}

/// The next row reports an eviction by command. An older eviction, another lane, another size or another run
/// starts over.
TEST(MaskSummary, FollowsWhatLeavesByHandAndStartsOverWhereItMust) {
    StepList steps = testing::synthetic_run(
        {.n_layers = 1, .n_heads = 2, .n_kv_heads = 2, .n_prompt = 12, .n_decoded = 12, .budgets = {0, 20}});
    const std::size_t first = steps.size() - 6;
    for (const auto& [late, all] : {std::pair(1, false), std::pair(3, true)}) {
        StepList changed = steps;
        auto step = std::make_shared<StepTrace>(*steps[first]);
        const int row = step->row;
        step->lanes[0].evictions = {{1, 4, row - late}, {0, 7, row - late}, {0, 2, row}};
        changed[first] = step;
        RunHistory history;
        history.update(upto(changed, first));
        MaskSummary summary;
        summary.update(history, 0, 32, 1);
        (void)summary.take_changes();
        history.update(upto(changed, first + 1));
        summary.update(history, 0, 32, 1);
        EXPECT_EQ(summary.take_changes().all, all);
        expect_counted(summary, history, 0, 1);
        history.update(changed);
        summary.update(history, 0, 32, 1);
        EXPECT_FALSE(summary.take_changes().all);
        expect_counted(summary, history, 0, 1);
        summary.update(history, 1, 32, 1);
        EXPECT_TRUE(summary.take_changes().all);
        expect_counted(summary, history, 1, 1);
        summary.update(history, 1, 16, 2);
        EXPECT_TRUE(summary.take_changes().all);
        expect_counted(summary, history, 1, 2);
        history.update(upto(steps, first));  // after a rewind
        summary.update(history, 1, 16, 2);
        EXPECT_TRUE(summary.take_changes().all);
        expect_counted(summary, history, 1, 2);
    }
}

}  // namespace
}  // namespace keyhole::test_mask_summary
