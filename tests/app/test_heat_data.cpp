#include "app/view/heat_data.h"
#include "engine/analysis/run_rows.h"
#include "engine/base/index.h"
#include "tests/reference/synthetic_run.h"

#include "engine/base/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace keyhole::test_heat_data {
namespace {

using testing::synthetic_attention;
using testing::synthetic_run;

constexpr float kNone = std::numeric_limits<float>::quiet_NaN();

TEST(HeadMatrix, OneHotCellInEveryCornerSurvivesEveryLevel) {
    for (int n : {1, 2, 3, 5, 63, 64, 65, 127, 129, 200}) {
        for (const auto& [x, y] :
             {std::pair(0, 0), std::pair(n - 1, 0), std::pair(0, n - 1), std::pair(n - 1, n - 1)}) {
            HeadMatrix matrix(16, 64);  // above 64 cells it keeps blocks
            for (int row = 0; row < n; ++row) {
                std::vector<float> values(to_index(n), 0.001f);
                if (row == y) values[to_index(x)] = 7;
                matrix.add_row(row, values);
            }
            ASSERT_LE(matrix.side(), 64);
            ASSERT_GE(matrix.side() * matrix.factor(), n);
            EXPECT_EQ(matrix.largest(true), 7);
            for (std::size_t level = 0; level < matrix.pyramid().size(); ++level) {
                const int block = matrix.factor() << level;
                EXPECT_EQ(matrix.pyramid()[level].at(x / block, y / block), 7)
                    << n << " level " << level << " at " << x << ", " << y;
            }
        }
    }
}

TEST(HeadMatrix, ChangesNameTheRowsThatMoved) {
    HeadMatrix matrix(8, 64);
    EXPECT_TRUE(matrix.take_changes().all);
    matrix.add_row(0, std::vector<float>{1});
    matrix.add_row(1, std::vector<float>{1, kNone});
    const HeadMatrix::Changes changes = matrix.take_changes();
    EXPECT_FALSE(changes.all);
    EXPECT_EQ(changes.first, 0);
    EXPECT_EQ(changes.last, 1);
    EXPECT_LT(matrix.take_changes().last, 0);
    matrix.add_row(8, std::vector<float>(9, 0.5f));
    EXPECT_TRUE(matrix.take_changes().all);  // it grew
    EXPECT_EQ(matrix.largest(false), 0.5f);
}

TEST(HeadMatrix, AnImageFoldsAsItsRowsDo) {
    std::mt19937 random(7);
    for (const auto& [n, window] : {std::pair(1, 0), std::pair(5, 0), std::pair(64, 0), std::pair(100, 0),
                                    std::pair(257, 0), std::pair(100, 9), std::pair(257, 40)})
        for (const int reduction : {1, 2, 16})
            for (const int max_side : {32, 128}) {
                const int size = (n + reduction - 1) / reduction;
                std::vector<std::uint16_t> image(to_index(size * size));
                const auto hides = [&](int row, int p) {
                    return window > 0 && reduction == 1 && p <= row - window;
                };
                for (int y = 0; y < size; ++y)
                    for (int x = 0; x <= y; ++x)
                        if (!hides(y, x))
                            image[to_index(y * size + x)] =
                                fp16_from_float(static_cast<float>(random() % 1000) / 1000);
                HeadMatrix at_once(16, max_side), by_rows(16, max_side);
                at_once.make_room(n);
                at_once.fold_image(image, size, reduction, n, window, kHiddenValue);
                at_once.finish_rows();
                float past_sinks = 0;  // of blocks without a sink
                for (int i = 0; i < n; ++i) {
                    std::vector<float> row;
                    for (int p = 0; p <= i; ++p) {
                        row.push_back(float_from_fp16(image[to_index(i / reduction * size + p / reduction)]));
                        if (p / reduction * reduction >= HeadMatrix::kSinks)
                            past_sinks = std::max(past_sinks, row.back());
                        if (hides(i, p)) row.back() = kHiddenValue;
                    }
                    by_rows.add_row(i, row);
                }
                ASSERT_EQ(at_once.factor(), by_rows.factor()) << n;
                for (std::size_t level = 0; level < by_rows.pyramid().size(); ++level)
                    for (std::size_t i = 0; i < by_rows.pyramid()[level].values.size(); ++i) {
                        const float a = at_once.pyramid()[level].values[i],
                                    b = by_rows.pyramid()[level].values[i];
                        ASSERT_TRUE(a == b || (std::isnan(a) && std::isnan(b)))
                            << n << " by " << reduction << ", level " << level << ", cell " << i;
                    }
                EXPECT_EQ(at_once.largest(true), by_rows.largest(true));
                EXPECT_EQ(at_once.largest(false), past_sinks);
            }
}

TEST(HeatData, ThumbnailsOfManyHeadsStayWithinTheirCells) {
    EXPECT_EQ(HeatData::thumbnail_side(48), 128);
    EXPECT_EQ(HeatData::thumbnail_side(32 * 32), 64);
    for (const int n : {1, 256, 257, 1024, 2304, 4096}) {
        const int side = HeatData::thumbnail_side(n);
        EXPECT_LE(std::int64_t{n} * side * side, HeatData::kAtlasCells) << n;
    }
}

TEST(RunRows, BlocksAreMaximaOfValues) {
    const StepList steps =
        synthetic_run({.n_kv_heads = 2, .n_prompt = 60, .n_decoded = 40, .budgets = {0, 16}});
    RunHistory history;
    history.update(steps);
    for (const int lane : {0, 1})
        for (const int log2_block : {0, 1, 3, 5})
            for (const int row : {60, 77, history.last_row()}) {
                const int block = 1 << log2_block;
                std::vector<std::vector<float>> expected(16);
                std::vector<float> past(16, kNone);
                attention_values_of_all(history, lane, row, [&](int l, int h, std::span<const float> values) {
                    const auto i = to_index(l * 4 + h);
                    expected[i].assign(to_index(row / block + 1), kNone);
                    for (int p = 0; p <= row; ++p) {
                        const float value = values[to_index(p)];
                        float& cell = expected[i][to_index(p / block)];
                        if (!(cell >= value) && !std::isnan(value)) cell = value;
                        if (p >= HeadMatrix::kSinks && !std::isnan(value) && !(past[i] >= value))
                            past[i] = value;
                    }
                });
                int n_heads = 0;
                ASSERT_TRUE(attention_blocks_of_all(
                    history, lane, row, log2_block, [&](int l, int h, const BlockRow& blocks) {
                        const auto i = to_index(l * 4 + h);
                        ++n_heads;
                        ASSERT_EQ(blocks.maxima.size(), expected[i].size());
                        for (std::size_t b = 0; b < expected[i].size(); ++b)
                            EXPECT_TRUE(blocks.maxima[b] == expected[i][b] ||
                                        (std::isnan(blocks.maxima[b]) && std::isnan(expected[i][b])))
                                << "lane " << lane << " row " << row << " head " << i << " block " << b;
                        EXPECT_EQ(blocks.past_sinks, past[i]);
                    }));
                EXPECT_EQ(n_heads, 16);
            }
}

TEST(HeatData, HoldsWhatTheRunHolds) {
    const StepList steps = synthetic_run({.n_kv_heads = 2, .budgets = {0, 16}});
    RunHistory history;
    history.update(steps);
    ViewState view;
    view.layer = 2;
    view.head = 3;
    HeatData data;
    while (!data.update(history, 1, view, 1000)) {
    }
    const Plane& base = data.focus().pyramid().front();
    const int g = history.run().layout.kv_head_from_head(2, 3);
    int gone = 0;
    for (int i = 0; i < history.n_positions(); ++i)
        for (int p = 0; p < base.width; ++p) {
            const float value = base.at(p, i);
            if (p > i) {
                EXPECT_TRUE(std::isnan(value));
            } else if (!history.attended(1, g, p, i)) {
                EXPECT_TRUE(std::isnan(value));
                ++gone;
            } else {
                EXPECT_EQ(value, float_from_fp16(fp16_from_float(synthetic_attention(i, 2, 3, p))))
                    << i << " " << p;
            }
        }
    EXPECT_GT(gone, 500);
    EXPECT_EQ(data.atlas().size(), 16u);
}

TEST(HeatData, RowByRowEqualsAllAtOnce) {
    const StepList steps = synthetic_run({.n_prompt = 100, .n_decoded = 80, .budgets = {0, 24}});
    ViewState view;
    view.mode = HeatMode::score;
    RunHistory growing, whole;
    HeatData one, all;
    for (std::size_t n = 1; n <= steps.size(); ++n) {
        growing.update(StepList(steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(n)));
        while (!one.update(growing, 1, view, 1000)) {
        }
    }
    whole.update(steps);
    while (!all.update(whole, 1, view, 1000)) {
    }
    const auto same = [](const HeadMatrix& a, const HeadMatrix& b) {
        if (a.side() != b.side() || a.factor() != b.factor()) return false;
        for (std::size_t level = 0; level < a.pyramid().size(); ++level)
            for (std::size_t i = 0; i < a.pyramid()[level].values.size(); ++i) {
                const float x = a.pyramid()[level].values[i], y = b.pyramid()[level].values[i];
                if (!(x == y || (std::isnan(x) && std::isnan(y)))) return false;
            }
        return true;
    };
    EXPECT_TRUE(same(one.focus(), all.focus()));
    ASSERT_EQ(one.atlas().size(), all.atlas().size());
    for (std::size_t i = 0; i < one.atlas().size(); ++i)
        EXPECT_TRUE(same(one.atlas()[i], all.atlas()[i])) << i;
    EXPECT_EQ(one.atlas()[0].factor(), 2);  // 180 cells in 128 texels
}

TEST(RunRows, KeptShareCountsHeads) {
    const StepList steps = synthetic_run({.budgets = {0, 16}});
    RunHistory history;
    history.update(steps);
    const int row = history.last_row();
    std::vector<float> share(to_index(row) + 1);
    kept_share(history, 0, row, 0, 16, share);
    for (float s : share) EXPECT_EQ(s, 1);
    kept_share(history, 1, row, 0, 16, share);
    double sum = 0;
    for (float s : share) sum += double(s);
    EXPECT_NEAR(sum, 16, 1e-4);  // the budget, averaged over heads
}

}  // namespace
}  // namespace keyhole::test_heat_data
