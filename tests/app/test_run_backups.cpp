// The live run's spool: its content, its size, its deletion, and the offer to recover it.
#include "app/state/run_backups.h"

#include "engine/base/error.h"
#include "engine/base/model_name.h"
#include "engine/trace/row_bytes.h"
#include "engine/trace/spool.h"
#include "engine/trace/spool_folder.h"
#include "engine/trace/trace_file.h"
#include "tests/reference/temp_folder.h"
#include "tests/unit/test_trace.h"

#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <stdexcept>
#include <vector>

namespace keyhole::test_kept_runs {
namespace {

namespace fs = std::filesystem;
using testing_trace::Maker;

class Kept : public ::testing::Test {
  protected:
    static StepList steps(int n, std::uint64_t run = 1) {
        Maker maker(testing_trace::make_run(run));
        maker.add_lane(0, 0);
        maker.add_lane(1, 4);
        StepList list;
        for (int i = 0; i < n; ++i) list.push_back(maker.next().step);
        return list;
    }
    /// Returns the rows in a spool.
    static std::vector<int> rows_of(const fs::path& spool) {
        std::vector<int> rows;
        const Frames frames(spool / "frames.bin");
        for (const auto& step : frames.light()) rows.push_back(step->row);
        return rows;
    }
    /// Leaves a spool as a killed window does.
    fs::path leave(const char* name, int n_rows) {
        SpoolFolder spool(folder_ / (std::string(name) + ".keyhole.spool"));
        spool.begin();
        for (const auto& step : steps(n_rows)) spool.append(*step);
        spool.end();
        return spool.path();
    }

    reference::TempFolder temp_{"kept"};
    const fs::path folder_ = temp_.path() / "runs";
};

TEST_F(Kept, HoldsTheRunWhileTheWindowIsOpen) {
    fs::path spool;
    {
        RunBackups kept(folder_);
        EXPECT_TRUE(kept.left().empty());
        const StepList run = steps(6);
        kept.update({run.begin(), run.begin() + 2});
        kept.update({run.begin(), run.begin() + 2});  // nothing new
        kept.update(run);
        kept.wait();
        spool = kept.spool();
        EXPECT_EQ(rows_of(spool), (std::vector<int>{5, 6, 7, 8, 9, 10}));
        EXPECT_EQ(fs::status(folder_).permissions() & fs::perms::others_all, fs::perms::none);
        const RunBackups second(folder_);
        EXPECT_TRUE(second.left().empty()) << "it is in use";
        kept.update(steps(3, 2));  // another run takes its place
        kept.wait();
        EXPECT_EQ(rows_of(spool), (std::vector<int>{5, 6, 7}));
    }
    EXPECT_FALSE(fs::exists(spool));
}

TEST_F(Kept, ALeftRunIsNamedByItsModelAndItsPrompt) {
    fs::create_directories(folder_);
    const StepList run = steps(2);
    EXPECT_EQ(RunBackups::words_of(leave("left", 2)),
              model_name(run.front()->run->model_path) + ", “the cat sat \"down\"”");
    auto other = std::make_shared<RunInfo>(*run.front()->run);
    other->model_path = "models/a";
    other->prompt = "\nOne day a girl saw the sea,\nand all the ships on it, and the gulls.";
    auto step = std::make_shared<StepTrace>(*run.front());
    step->run = other;
    SpoolFolder spool(folder_ / "long.keyhole.spool");
    spool.begin();
    spool.append(*step);
    spool.end();
    EXPECT_EQ(RunBackups::words_of(spool.path()), "") << "it is in use";
    spool.put_aside(folder_ / "put.keyhole.spool");
    EXPECT_EQ(RunBackups::words_of(folder_ / "put.keyhole.spool"),
              "a, “One day a girl saw the sea, and all the ships on…”");
    EXPECT_EQ(RunBackups::words_of(folder_ / "none"), "");
}

TEST_F(Kept, FollowsTheShownBranch) {
    RunBackups kept(folder_);
    StepList run = steps(6);
    kept.update(run);
    // Rewinds to row 7 and continues.
    run.resize(3);
    kept.update(run);
    for (const auto& step : {steps(5)[3], steps(5)[4]}) {
        auto other = std::make_shared<StepTrace>(*step);
        other->run = run.front()->run;
        other->branch = 1;
        run.push_back(std::move(other));
    }
    kept.update(run);
    kept.wait();
    const Frames frames(kept.spool() / "frames.bin");
    ASSERT_EQ(frames.light().size(), 5u);
    EXPECT_EQ(frames.light()[2]->branch, 0);
    EXPECT_EQ(frames.light()[4]->branch, 1);
}

TEST_F(Kept, StaysBelowItsSize) {
    constexpr std::size_t kMost = 400'000;
    RunBackups kept(folder_, kMost);
    const StepList run = steps(160);
    kept.update(run);
    kept.wait();
    EXPECT_EQ(kept.take_fault(), "");
    const Frames frames(kept.spool() / "frames.bin");
    EXPECT_LT(fs::file_size(kept.spool() / "frames.bin"), 2 * kMost);
    ASSERT_EQ(frames.light().size(), run.size());
    EXPECT_EQ(frames.light().front()->lanes[0].rows, nullptr);
    EXPECT_NE(frames.light().back()->lanes[0].rows, nullptr);
    EXPECT_EQ(frames.light().back()->lanes[1].evictions, run.back()->lanes[1].evictions);
}

/// A disk that is slower than the run must not fill the memory.
TEST_F(Kept, WhatWaitsForTheDiskStaysBelowTheLimit) {
    const StepList run = steps(60);
    const std::size_t most = 5 * row_bytes(*run.back());
    ASSERT_GT(most, 0u);
    RunBackups kept(folder_, most);
    kept.update(run);
    EXPECT_LE(kept.waiting_bytes(), most);
    kept.wait();
    EXPECT_EQ(kept.waiting_bytes(), 0u);
    EXPECT_EQ(rows_of(kept.spool()).size(), 60u) << "all records, some without attention";
}

TEST_F(Kept, TheLastRunStaysUntilTheNextOne) {
    for (const int n : {3, 5}) {
        RunBackups kept(folder_);
        EXPECT_EQ(kept.last().empty(), n == 3);
        kept.update(steps(n));
        kept.wait();
        kept.keep_as_last(true);
    }
    fs::path last;
    {
        RunBackups kept(folder_);
        last = kept.last();
        EXPECT_EQ(rows_of(last).size(), 5u) << "in place of the one before";
        EXPECT_TRUE(kept.left().empty()) << "it is not offered as a crash is";
        kept.update(steps(2));
        kept.wait();
        kept.keep_as_last(false);
    }
    EXPECT_EQ(rows_of(last).size(), 5u);
    EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
}

// A run that cannot take the place of the last one is offered at the next start, and the last one stays.
TEST_F(Kept, NeitherRunIsLostWhereTheLastOneIsInUse) {
    const auto end_with = [&](int n) {
        RunBackups kept(folder_);
        kept.update(steps(n));
        kept.wait();
        kept.keep_as_last(true);
    };
    end_with(3);
    fs::path last;
    {
        RunBackups kept(folder_);
        last = kept.last();
    }
    {
        const FoundSpool opened(last);  // by another window
        end_with(5);
    }
    RunBackups kept(folder_);
    EXPECT_EQ(rows_of(kept.last()).size(), 3u);
    ASSERT_EQ(kept.left().size(), 1u);
    EXPECT_EQ(rows_of(kept.left().front()).size(), 5u);
}

TEST_F(Kept, ARewindWithoutANewStepCutsTheSpool) {
    RunBackups kept(folder_);
    const StepList run = steps(6);
    kept.update(run);
    kept.update({run.begin(), run.begin() + 4});
    kept.wait();
    EXPECT_EQ(rows_of(kept.spool()).size(), 4u);
    kept.update(run);
    kept.wait();
    EXPECT_EQ(rows_of(kept.spool()).size(), 6u);
}

TEST_F(Kept, AnExceptionLeavesTheRun) {
    fs::path spool;
    try {
        RunBackups kept(folder_);
        kept.update(steps(4));
        kept.wait();
        spool = kept.spool();
        throw std::runtime_error("of the window");
    } catch (const std::runtime_error&) {
    }
    EXPECT_EQ(rows_of(spool).size(), 4u);
    RunBackups next(folder_);
    EXPECT_EQ(next.left(), std::vector<fs::path>{spool});
    EXPECT_EQ(read_trace(recover_spool(spool)).size(), 4u);
}

TEST_F(Kept, OffersTheNewestFewAndDiscards) {
    fs::create_directories(folder_);
    for (const char* name : {"run-1", "run-2", "run-3", "run-4", "run-5"}) leave(name, 2);
    fs::create_directories(folder_ / "run-6.keyhole.spool");  // an empty spool
    fs::create_directories(folder_ / "thesis");
    fs::create_directories(folder_ / "thesis.keyhole.spool");
    fs::create_directories(folder_ / "run-7.keyhole.spool");
    std::ofstream(folder_ / "run-7.keyhole.spool" / "trace.partner") << "mine";
    RunBackups kept(folder_);
    ASSERT_EQ(kept.left().size(), 4u);
    EXPECT_EQ(kept.left().front().filename(), "run-5.keyhole.spool");
    EXPECT_TRUE(fs::exists(folder_ / "thesis.keyhole.spool")) << "no name of a kept run";
    EXPECT_TRUE(fs::exists(folder_ / "run-7.keyhole.spool" / "trace.partner"));
    EXPECT_FALSE(fs::exists(folder_ / "run-1.keyhole.spool"));
    EXPECT_FALSE(fs::exists(folder_ / "run-6.keyhole.spool"));
    EXPECT_TRUE(fs::exists(folder_ / "thesis"));
    const fs::path newest = kept.left().front();
    kept.discard(newest);
    EXPECT_FALSE(fs::exists(newest));
    kept.forget(kept.left().front());
    EXPECT_EQ(kept.left().size(), 2u);
    EXPECT_TRUE(fs::exists(folder_ / "run-4.keyhole.spool")) << "opened, not discarded";
}

// A finished run can be named: its newest record comes once more.
TEST_F(Kept, HasTheNameThatALaneGotLast) {
    RunBackups kept(folder_);
    StepList run = steps(4);
    kept.update({run.begin(), run.begin() + 3});
    auto renamed = std::make_shared<StepTrace>(*run[2]);
    auto info = std::make_shared<LaneInfo>(*renamed->lanes[1].info);
    info->spec = "mine=" + info->spec;
    renamed->lanes[1].info = info;
    run[2] = renamed;
    kept.update({run.begin(), run.begin() + 3});
    kept.wait();
    const auto last = [&] {
        const Frames frames(kept.spool() / "frames.bin");
        return frames.light().at(2)->lanes[1].info->spec;
    };
    EXPECT_EQ(rows_of(kept.spool()).size(), 3u);
    EXPECT_EQ(last(), info->spec);
    kept.update(run);
    kept.wait();
    EXPECT_EQ(rows_of(kept.spool()).size(), 4u);
    // A name and the next step may come at once.
    auto again = std::make_shared<StepTrace>(*run[3]);
    again->lanes[0].info = std::make_shared<LaneInfo>(*again->lanes[0].info);
    StepList longer = steps(5);
    std::copy(run.begin(), run.end(), longer.begin());
    longer[3] = again;
    kept.update(longer);
    kept.wait();
    EXPECT_EQ(rows_of(kept.spool()).size(), 5u);
}

TEST_F(Kept, KeepsTheNextRunOnceThereIsRoomAgain) {
    std::ofstream(temp_.path() / "runs") << "in the way";
    RunBackups kept(folder_);
    kept.update(steps(2));
    kept.wait();
    EXPECT_NE(kept.take_fault(), "");
    fs::remove(temp_.path() / "runs");
    kept.update(steps(3));
    kept.wait();
    EXPECT_TRUE(kept.spool().empty()) << "of this run rows are missing";
    kept.update(steps(2, 2));
    kept.wait();
    EXPECT_EQ(kept.take_fault(), "");
    EXPECT_EQ(rows_of(kept.spool()).size(), 2u);
}

TEST_F(Kept, AFullDiskIsSaidAndTheWindowGoesOn) {
    RunBackups kept("/proc/nowhere");
    kept.update(steps(2));
    kept.wait();
    EXPECT_NE(kept.take_fault().find("no longer kept"), std::string::npos);
    EXPECT_EQ(kept.take_fault(), "") << "said once";
    kept.update(steps(3));
    kept.wait();
    EXPECT_TRUE(kept.spool().empty());
}

}  // namespace
}  // namespace keyhole::test_kept_runs
