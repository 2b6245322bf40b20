#include "engine/trace/recorder.h"

#include "tests/unit/test_trace.h"

#include <gtest/gtest.h>

#include <thread>

namespace keyhole::test_recorder {
namespace {

std::shared_ptr<const StepTrace> step_of(std::shared_ptr<const RunInfo> run, int row, std::size_t floats,
                                         int n_lanes = 1) {
    auto step = std::make_shared<StepTrace>();
    step->run = std::move(run);
    step->row = row;
    for (int n = 0; n < n_lanes; ++n) {
        LaneRecord lane;
        lane.token = row * 10 + n;
        if (floats) {
            auto block = std::make_shared<RowBlock>();
            block->scores.resize(floats);
            lane.rows = block;
        }
        step->lanes.push_back(lane);
    }
    return step;
}

TEST(Recorder, BlockBytesCountEveryArray) {
    RowBlock block;
    EXPECT_EQ(block.bytes(), 0u);
    block.offset.resize(3);
    block.head_offset.resize(5);
    block.attention.resize(7);
    block.scores.resize(11);
    block.threshold.resize(2);
    EXPECT_EQ(block.bytes(), 3 * 4 + 5 * 8 + 7 * 2 + 11 * 4 + 2 * 4u);
}

TEST(Recorder, KeepsEverythingWithinTheBudget) {
    Recorder recorder(10 * 400);
    const auto run = testing_trace::make_run();
    for (int row = 5; row < 15; ++row) recorder.push(step_of(run, row, 100));
    const auto snapshot = recorder.snapshot();
    ASSERT_EQ(snapshot.steps.size(), 10u);
    EXPECT_EQ(snapshot.row_bytes, 4000u);
    EXPECT_EQ(snapshot.budget_bytes, 4000u);
    EXPECT_EQ(snapshot.stride, 1);
    EXPECT_EQ(snapshot.dense_from, 5);
    for (const auto& step : snapshot.steps) EXPECT_TRUE(step->lanes[0].rows);
}

// After any number of rows: memory is within the budget, rows from dense_from on are complete, older rows are
// kept exactly where row % stride == 0, every row keeps its scalars, and the newest half of the budget is
// dense.
TEST(Recorder, ThinsOlderRowsByDoublingStride) {
    const std::size_t block = 400, budget = 64 * block;
    Recorder recorder(budget);
    const auto run = testing_trace::make_run();
    int largest_stride = 1;
    for (int row = 5; row < 3000; ++row) {
        recorder.push(step_of(run, row, 50, 2));  // two lanes of 200 bytes
        const auto snapshot = recorder.snapshot();
        ASSERT_EQ(static_cast<int>(snapshot.steps.size()), row - 4);
        ASSERT_LE(snapshot.row_bytes, budget);
        ASSERT_GE(snapshot.stride, largest_stride);
        largest_stride = snapshot.stride;
        if (row % 97 != 0 && row > 200) continue;
        std::size_t held = 0;
        for (const auto& step : snapshot.steps) {
            ASSERT_EQ(step->lanes[0].token, step->row * 10);
            ASSERT_EQ(step->lanes[1].token, step->row * 10 + 1);
            const bool kept = step->row >= snapshot.dense_from || step->row % snapshot.stride == 0;
            for (const auto& lane : step->lanes)
                ASSERT_EQ(static_cast<bool>(lane.rows), kept) << step->row << " of " << row;
            if (kept) held += block;
        }
        ASSERT_EQ(held, snapshot.row_bytes);
        ASSERT_GE(row - snapshot.dense_from + 1, std::min(row - 4, 30));
    }
    EXPECT_GE(largest_stride, 64);  // 3000 rows on 32 places
    EXPECT_EQ(largest_stride & (largest_stride - 1), 0);
}

// A shadow's values per head count as row blocks do and are dropped with them; its means stay.
TEST(Recorder, ShadowsCountAndAreThinnedWithTheirRows) {
    const std::size_t shadow = 4 * 50 * sizeof(float), budget = 64 * shadow;
    Recorder recorder(budget);
    const auto run = testing_trace::make_run();
    for (int row = 5; row < 600; ++row) {
        auto step = std::make_shared<StepTrace>(*step_of(run, row, row % 2 == 0 ? 25 : 0));
        auto values = std::make_shared<ShadowRow>();
        for (const auto part : {&ShadowRow::retained_mass, &ShadowRow::cosine_ideal, &ShadowRow::cosine_full,
                                &ShadowRow::output_similarity})
            ((*values).*part).resize(50);
        step->lanes[0].shadow = std::move(values);
        step->lanes[0].measures.retained_mass = 0.5f;
        recorder.push(std::move(step));
    }
    const auto snapshot = recorder.snapshot();
    EXPECT_LE(snapshot.row_bytes, budget);
    EXPECT_GE(snapshot.stride, 8);
    std::size_t held = 0;
    for (const auto& step : snapshot.steps) {
        const LaneRecord& lane = step->lanes[0];
        const bool kept = step->row >= snapshot.dense_from || step->row % snapshot.stride == 0;
        EXPECT_EQ(lane.shadow != nullptr, kept) << step->row;
        EXPECT_EQ(lane.measures.retained_mass, 0.5f);
        held += (lane.shadow ? shadow : 0) + (lane.rows ? 100 : 0);
    }
    EXPECT_EQ(held, snapshot.row_bytes);
}

TEST(Recorder, NewestRowStaysThoughItAloneExceedsTheBudget) {
    Recorder recorder(100);
    const auto run = testing_trace::make_run();
    for (int row = 5; row < 9; ++row) {
        recorder.push(step_of(run, row, 1000));
        EXPECT_TRUE(recorder.snapshot().steps.back()->lanes[0].rows);
    }
    EXPECT_EQ(recorder.snapshot().row_bytes, 4000u);
}

TEST(Recorder, ThinningLeavesEarlierSnapshotsAsTheyWere) {
    Recorder recorder(2 * 400);
    const auto run = testing_trace::make_run();
    recorder.push(step_of(run, 5, 100));
    const auto before = recorder.snapshot();
    for (int row = 6; row < 40; ++row) recorder.push(step_of(run, row, 100));
    EXPECT_TRUE(before.steps[0]->lanes[0].rows);
    EXPECT_FALSE(recorder.snapshot().steps[0]->lanes[0].rows);
}

TEST(Recorder, AnotherRunAndClearStartOver) {
    Recorder recorder(2 * 400);
    const auto first = testing_trace::make_run(1), second = testing_trace::make_run(2);
    for (int row = 5; row < 40; ++row) recorder.push(step_of(first, row, 100));
    const auto version = recorder.version();
    recorder.push(step_of(second, 3, 100));
    auto snapshot = recorder.snapshot();
    ASSERT_EQ(snapshot.steps.size(), 1u);
    EXPECT_EQ(snapshot.steps[0]->run->id, 2u);
    EXPECT_EQ(snapshot.row_bytes, 400u);
    EXPECT_EQ(snapshot.stride, 1);
    EXPECT_EQ(snapshot.dense_from, 3);
    EXPECT_NE(recorder.version(), version);
    EXPECT_EQ(snapshot.version, recorder.version());
    recorder.clear();
    snapshot = recorder.snapshot();
    EXPECT_TRUE(snapshot.steps.empty());
    EXPECT_EQ(snapshot.row_bytes, 0u);
    EXPECT_NE(recorder.version(), version);
}

TEST(Recorder, ARewoundRunLosesItsLaterRowsAndTheirBytes) {
    Recorder recorder(10 * 400);
    const auto run = testing_trace::make_run();
    for (int row = 5; row < 25; ++row) recorder.push(step_of(run, row, 100));
    const std::uint64_t version = recorder.version();
    recorder.rewind(18);
    EXPECT_GT(recorder.version(), version);
    const auto held = [&] {
        std::size_t bytes = 0;
        for (const auto& step : recorder.snapshot().steps)
            if (step->lanes[0].rows) bytes += step->lanes[0].rows->bytes();
        return bytes;
    };
    EXPECT_EQ(recorder.snapshot().steps.back()->row, 18);
    EXPECT_EQ(recorder.snapshot().row_bytes, held());
    // A row that exists already, but of another branch, cuts the records there.
    auto again = step_of(run, 12, 100);
    std::const_pointer_cast<StepTrace>(again)->branch = 2;
    recorder.push(again);
    EXPECT_EQ(recorder.snapshot().steps.size(), 8u);
    EXPECT_EQ(recorder.snapshot().steps.back().get(), again.get());
    EXPECT_EQ(recorder.snapshot().row_bytes, held());
    EXPECT_LE(recorder.snapshot().dense_from, 12);
    for (int row = 13; row < 40; ++row) recorder.push(step_of(run, row, 100));
    EXPECT_EQ(recorder.snapshot().row_bytes, held());
    EXPECT_LE(held(), 4000u);
}

TEST(Recorder, CountsWhatRowBlocksAreNot) {
    Recorder recorder(1 << 20);
    const auto run = testing_trace::make_run();
    EXPECT_EQ(recorder.snapshot().scalar_bytes, 0u);
    recorder.push(step_of(run, 5, 100, 2));
    const std::size_t one = recorder.snapshot().scalar_bytes;
    EXPECT_EQ(one, sizeof(StepTrace) + 2 * sizeof(LaneRecord)) << "row blocks are counted in row_bytes";
    auto second = std::make_shared<StepTrace>(*step_of(run, 6, 100, 2));
    second->lanes[0].top.resize(10);
    second->lanes[1].evictions.resize(3);
    auto image = std::make_shared<PromptRows>();
    image->attention.resize(50);
    second->prompt_rows = image;
    recorder.push(second);
    EXPECT_EQ(recorder.snapshot().scalar_bytes,
              2 * one + 10 * sizeof(TopToken) + 3 * sizeof(Eviction) + 50 * sizeof(std::uint16_t));
    recorder.rewind(5);
    EXPECT_EQ(recorder.snapshot().scalar_bytes, one);
    recorder.clear();
    EXPECT_EQ(recorder.snapshot().scalar_bytes, 0u);
}

TEST(Recorder, ReadersOnOtherThreadsSeeWholeSteps) {
    Recorder recorder(8 * 400);
    const auto run = testing_trace::make_run();
    std::atomic<bool> done{false};
    std::thread reader([&] {
        std::uint64_t seen = 0;
        while (!done.load()) {
            if (recorder.version() == seen) {
                std::this_thread::yield();
                continue;
            }
            const auto snapshot = recorder.snapshot();
            EXPECT_GE(snapshot.version, seen);
            seen = snapshot.version;
            for (std::size_t i = 0; i < snapshot.steps.size(); ++i)
                EXPECT_EQ(snapshot.steps[i]->row, snapshot.steps[0]->row + static_cast<int>(i));
        }
    });
    for (int row = 5; row < 500; ++row) recorder.push(step_of(run, row, 100));
    done = true;
    reader.join();
    EXPECT_EQ(recorder.snapshot().steps.size(), 495u);
}

}  // namespace
}  // namespace keyhole::test_recorder
