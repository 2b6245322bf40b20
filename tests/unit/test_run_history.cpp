#include "engine/analysis/run_rows.h"
#include "engine/base/index.h"
#include "engine/trace/run_history.h"

#include "tests/unit/test_trace.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>

namespace keyhole::test_run_history {
namespace {

using testing_trace::Maker;

TEST(RunHistory, AttendedAndStoredFollowTheCachesOfEveryRow) {
    Maker maker;
    maker.add_lane(0, 0);
    maker.add_lane(1, 4);
    StepList steps;
    std::vector<Maker::Row> rows;
    RunHistory history;
    EXPECT_TRUE(history.empty());
    for (int i = 0; i < 30; ++i) {
        rows.push_back(maker.next());
        steps.push_back(rows.back().step);
        if (i % 3 == 0) history.update(steps);  // several rows at once, and tables that grow
    }
    history.update(steps);
    ASSERT_EQ(history.lanes().size(), 2u);
    EXPECT_EQ(history.last_row(), 34);
    EXPECT_EQ(history.n_positions(), 35);
    EXPECT_GE(history.capacity(), 35);
    for (std::size_t i = 0; i < rows.size(); ++i) {
        const int row = rows[i].step->row;
        for (int lane = 0; lane < 2; ++lane) {
            for (int g = 0; g < 6; ++g) {
                const auto& attended = rows[i].attended[to_index(lane)][to_index(g)];
                EXPECT_EQ(history.attended_positions(lane, g, row), attended)
                    << row << " " << lane << " " << g;
                for (int p = 0; p < history.n_positions(); ++p) {
                    const bool is_attended = std::count(attended.begin(), attended.end(), p) > 0;
                    EXPECT_EQ(history.attended(lane, g, p, row), is_attended);
                    // Stored after the row: what the next row attends to, except its own token.
                    if (i + 1 == rows.size()) continue;
                    const auto& next = rows[i + 1].attended[to_index(lane)][to_index(g)];
                    EXPECT_EQ(history.stored(lane, g, p, row),
                              p <= row && std::count(next.begin(), next.end(), p) > 0);
                }
            }
        }
    }
}

std::vector<int> looks_of(const RunHistory& history) {
    std::vector<int> looks;
    for (const RunHistory::Lane& lane : history.lanes()) looks.push_back(lane.look);
    return looks;
}

// A lane's colour goes by its look, so the look may not depend on its place.
TEST(RunHistory, ALaneKeepsItsLookWhileOthersComeAndGo) {
    Maker maker;
    for (const int id : {0, 1, 2}) maker.add_lane(id, 0);
    StepList steps = {maker.next().step};
    RunHistory history;
    history.update(steps);
    EXPECT_EQ(looks_of(history), (std::vector<int>{0, 1, 2}));
    maker.remove_lane(1);
    steps.push_back(maker.next().step);
    maker.add_lane(3, 4);
    steps.push_back(maker.next().step);
    history.update(steps);
    EXPECT_EQ(looks_of(history), (std::vector<int>{0, 1, 2, 3})) << "not that of the lane that left";
    for (const int id : {4, 5, 6, 7}) maker.add_lane(id, 0);
    maker.remove_lane(5);
    steps.push_back(maker.next().step);
    maker.add_lane(8, 0);
    steps.push_back(maker.next().step);
    history.update(steps);
    EXPECT_EQ(history.lanes().back().look, 7) << "the last new colour";
    maker.add_lane(9, 0);
    maker.add_lane(10, 0);
    steps.push_back(maker.next().step);
    history.update(steps);
    EXPECT_EQ(history.lanes()[history.lanes().size() - 2].look, 1) << "no lane on show has this one";
    EXPECT_EQ(history.lanes().back().look, 8);
    RunHistory again;
    again.update(steps);
    EXPECT_EQ(looks_of(again), looks_of(history));
}

TEST(RunHistory, AStartMayNameTheLooks) {
    auto run = std::make_shared<RunInfo>(*testing_trace::make_run());
    run->start.lanes = {"full", "h2o:budget=4"};
    run->start.looks = {0, 5};
    Maker maker(run);
    maker.add_lane(0, 0);
    maker.add_lane(1, 4);
    StepList steps = {maker.next().step};
    maker.add_lane(2, 0);
    steps.push_back(maker.next().step);
    RunHistory history;
    history.update(steps);
    EXPECT_EQ(looks_of(history), (std::vector<int>{0, 5, 1}));
}

// A lane that shares KV heads in another way is a new lane for the record, and the same one for the user.
TEST(RunHistory, ALaneThatTakesAnothersPlaceLooksTheSame) {
    for (const bool parent_stays : {false, true}) {
        Maker maker;
        maker.add_lane(0, 0);
        maker.add_lane(1, 4);
        StepList steps = {maker.next().step};
        if (!parent_stays) maker.remove_lane(1);
        maker.add_lane(2, 4);
        auto step = std::make_shared<StepTrace>(*maker.next().step);
        auto info = std::make_shared<LaneInfo>(*step->lanes.back().info);
        info->forked_from = 1;
        info->forked_at = step->row - 1;
        step->lanes.back().info = info;
        steps.push_back(step);
        RunHistory history;
        history.update(steps);
        EXPECT_EQ(history.lanes().back().look, parent_stays ? 2 : 1);
    }
}

// A history can be replaced by one made elsewhere. Readers must notice.
TEST(RunHistory, NoTwoHistoriesShareAGeneration) {
    Maker maker;
    maker.add_lane(0, 0);
    const StepList steps = {maker.next().step};
    RunHistory one, other;
    one.update(steps);
    other.update(steps);
    EXPECT_NE(one.generation(), other.generation());
    const std::uint64_t before = one.generation();
    one = std::move(other);
    EXPECT_NE(one.generation(), before);
    one.update(steps);  // nothing new
    const std::uint64_t now = one.generation();
    one.update({});
    EXPECT_NE(one.generation(), now);
}

// Figures are drawn by several threads from one history.
TEST(RunHistoryThreads, ReadersOfHiddenPositionsDoNotDisturbEachOther) {
    Maker maker;
    maker.add_lane(0, 4);
    StepList steps;
    RunHistory history;
    for (int i = 0; i < 20; ++i) {
        auto step = std::make_shared<StepTrace>(*maker.next().step);
        auto set = std::make_shared<HiddenSet>();
        for (int g = 0; g <= 6; ++g) set->offset.push_back(g * 8);
        set->bits.assign(48, static_cast<std::uint8_t>(0x55 << (i % 2)));  // every other held position
        step->lanes[0].hidden = set;
        steps.push_back(step);
    }
    history.update(steps);
    const auto read = [&](std::vector<bool>& out) {
        for (int p = 0; p < history.n_positions(); ++p)  // changes row and head at every read
            for (int row = 6; row <= history.last_row(); ++row)
                for (int g = 0; g < 6; ++g)
                    if (p <= row) out.push_back(history.attended(0, g, p, row));
    };
    std::vector<std::vector<bool>> seen(4);
    std::vector<std::thread> threads;
    for (std::vector<bool>& out : seen) threads.emplace_back([&] { read(out); });
    for (std::thread& thread : threads) thread.join();
    std::vector<bool> alone;
    read(alone);
    EXPECT_GT(std::count(alone.begin(), alone.end(), true), 100);
    for (const std::vector<bool>& out : seen) EXPECT_EQ(out, alone);
    for (int g = 0; g < 6; ++g) {
        const std::vector<std::int32_t> held = history.held_positions(0, g, 20);
        for (std::size_t i = 0; i < held.size(); ++i)
            EXPECT_EQ(history.hidden(0, g, held[i], 20),
                      static_cast<int>(i) % 2 == (20 - history.n_prompt() + 1) % 2);
    }
}

TEST(RunHistory, EvictedAtIsTheRowWhoseProcessingEvicted) {
    Maker maker;
    maker.add_lane(0, 4);
    StepList steps{maker.next().step, maker.next().step};
    RunHistory history;
    history.update(steps);
    // KV head 0 drops the oldest: 0 and 1 after the prompt (rows 0..5), then 2 after row 6.
    EXPECT_EQ(history.evicted_at(0, 0, 0), 5);
    EXPECT_EQ(history.evicted_at(0, 0, 1), 5);
    EXPECT_EQ(history.evicted_at(0, 0, 2), 6);
    EXPECT_EQ(history.evicted_at(0, 0, 3), -1);
    // KV head 1 drops the second oldest.
    EXPECT_EQ(history.evicted_at(0, 1, 0), -1);
    EXPECT_EQ(history.evicted_at(0, 1, 1), 5);
    EXPECT_TRUE(history.attended(0, 0, 2, 6));
    EXPECT_FALSE(history.stored(0, 0, 2, 6));
    EXPECT_FALSE(history.attended(0, 0, 2, 7));
    EXPECT_FALSE(history.attended(0, 0, 6, 5));  // not yet appended
}

TEST(RunHistory, RowsAreScatteredByPosition) {
    Maker maker;
    maker.add_lane(0, 0);
    maker.add_lane(5, 4);
    StepList steps;
    std::vector<Maker::Row> rows;
    for (int i = 0; i < 12; ++i) {
        rows.push_back(maker.next());
        steps.push_back(rows.back().step);
    }
    RunHistory history;
    history.update(steps);
    std::vector<float> out(to_index(history.n_positions()));
    const KvLayout& layout = history.run().layout;
    for (const Maker::Row& made : rows) {
        const int row = made.step->row;
        for (int lane = 0; lane < 2; ++lane) {
            const int id = lane == 0 ? 0 : 5;
            const auto& attended = made.attended[to_index(lane)];
            for (int l = 0; l < 3; ++l)
                for (int h = 0; h < 4; ++h) {
                    const auto& set = attended[to_index(layout.kv_head_from_head(l, h))];
                    ASSERT_TRUE(history.attention_row(lane, row, l, h, out));
                    for (int p = 0; p < history.n_positions(); ++p) {
                        const bool seen = std::count(set.begin(), set.end(), p) > 0;
                        EXPECT_EQ(out[to_index(p)],
                                  seen ? testing_trace::attention_value(id, row, l, h, p) : 0);
                    }
                }
            for (int g = 0; g < 6; ++g) {
                ASSERT_TRUE(history.score_row(lane, row, g, out));
                const auto& set = attended[to_index(g)];
                for (int p = 0; p < history.n_positions(); ++p) {
                    const float value = out[to_index(p)];
                    if (std::count(set.begin(), set.end(), p) > 0)
                        EXPECT_EQ(value, testing_trace::score_value(id, row, g, p));
                    else
                        EXPECT_TRUE(std::isnan(value));
                }
            }
        }
    }
}

TEST(RunHistory, ThinnedRowsAreSaidToBeMissingAndScalarsStay) {
    Recorder recorder(4000);
    Maker maker;
    maker.add_lane(0, 4);
    RunHistory history;
    for (int i = 0; i < 60; ++i) {
        recorder.push(maker.next().step);
        history.update(recorder.snapshot().steps);
    }
    const auto snapshot = recorder.snapshot();
    std::vector<float> out(to_index(history.n_positions()));
    std::set<bool> seen;
    for (int row = 5; row <= history.last_row(); ++row) {
        const bool kept = row >= snapshot.dense_from || row % snapshot.stride == 0;
        EXPECT_EQ(history.attention_row(0, row, 0, 0, out), kept) << row;
        EXPECT_EQ(history.score_row(0, row, 0, out), kept) << row;
        EXPECT_EQ(history.at_row(row).row, row);
        EXPECT_EQ(history.lane_record(row, 0)->tau, 1.5f);
        seen.insert(kept);
    }
    EXPECT_EQ(seen.size(), 2u);
}

TEST(RunHistory, LanesComeAndGo) {
    Maker maker;
    maker.add_lane(0, 0);
    maker.add_lane(1, 4);
    StepList steps;
    RunHistory history;
    const auto take = [&] {
        steps.push_back(maker.next().step);
        history.update(steps);
    };
    for (int i = 0; i < 4; ++i) take();  // rows 5..8
    maker.remove_lane(1);
    maker.add_lane(2, 4);
    Maker::Row joined;
    for (int i = 0; i < 3; ++i) {  // rows 9..11
        joined = maker.next();
        steps.push_back(joined.step);
        history.update(steps);
    }
    ASSERT_EQ(history.lanes().size(), 3u);
    EXPECT_EQ(history.lanes()[1].last_row, 8);
    EXPECT_EQ(history.lanes()[2].first_row, 9);
    EXPECT_EQ(history.lanes()[2].last_row, 11);
    EXPECT_EQ(history.lane_from_id(2), 2);
    EXPECT_FALSE(history.lane_from_id(9));
    EXPECT_TRUE(history.lane_record(8, 1));
    EXPECT_FALSE(history.lane_record(9, 1));
    EXPECT_FALSE(history.lane_record(8, 2));
    EXPECT_FALSE(history.lane_record(99, 0));
    for (int g = 0; g < 6; ++g)
        EXPECT_EQ(history.attended_positions(2, g, 11), joined.attended[1][to_index(g)]);
    // The new lane's tokens: lane 0's until it joined, then its own.
    const auto& tokens = history.lanes()[2].tokens;
    const auto& reference = history.lanes()[0].tokens;
    ASSERT_EQ(tokens.size(), 12u);
    EXPECT_EQ(reference[0], 1);
    EXPECT_EQ(reference[5], 6);
    EXPECT_EQ(reference[6], 10 + 6 % 20);
    for (std::size_t p = 0; p < 9; ++p) EXPECT_EQ(tokens[p], reference[p]);
    EXPECT_EQ(tokens[9], 10 + (9 + 2) % 20);
}

TEST(RunHistory, AnEndedLaneStopsGrowing) {
    Maker maker;
    maker.add_lane(0, 0);
    maker.add_lane(1, 0);
    StepList steps;
    for (int row = 5; row < 10; ++row) {
        auto step = std::make_shared<StepTrace>(*maker.next().step);
        step->lanes[1].ended = row >= 7;
        step->lanes[1].attended_tokens = row > 7 ? 0 : 1;
        steps.push_back(std::move(step));
    }
    RunHistory history;
    history.update(steps);
    EXPECT_EQ(history.lanes()[0].last_row, 9);
    EXPECT_EQ(history.lanes()[0].tokens.size(), 10u);
    EXPECT_EQ(history.lanes()[1].last_row, 7);
    EXPECT_EQ(history.lanes()[1].tokens.size(), 8u);
    EXPECT_TRUE(history.lanes()[1].ended);
    // Its text is not longer where other lanes go on.
    EXPECT_EQ(n_tokens_at(history, 1, 6), 7);
    EXPECT_EQ(n_tokens_at(history, 1, 9), 8);
    EXPECT_EQ(n_tokens_at(history, 0, 9), 10);
}

TEST(RunHistory, ALaneThatWordsOfTheUserTakeUpAgainGoesOn) {
    Maker maker;
    for (int lane = 0; lane < 3; ++lane) maker.add_lane(lane, 0);
    StepList steps;
    RunHistory history;
    std::vector<int> taken_up = maker.run()->prompt_tokens;
    for (int row = 5; row < 11; ++row) {
        auto step = std::make_shared<StepTrace>(*maker.next().step);
        // All lanes end with row 7. Lane 0 reads the user's words in row 8; the others continue no more.
        step->lanes[0].ended = row == 7;
        step->lanes[1].ended = row >= 7;
        step->lanes[2].failure = row >= 7 ? "weights gave NaN" : "";
        if (row > 7) step->lanes[1].attended_tokens = step->lanes[2].attended_tokens = 0;
        if (row > 5) taken_up.push_back(step->lanes[0].token);
        steps.push_back(std::move(step));
        history.update(steps);
        EXPECT_EQ(history.lanes()[0].last_row, row);
        EXPECT_EQ(history.lanes()[0].tokens, taken_up) << row;
        EXPECT_EQ(history.lanes()[0].ended, row == 7);
        for (std::size_t lane = 1; lane < 3; ++lane) {
            EXPECT_EQ(history.lanes()[lane].last_row, std::min(row, 7)) << lane;
            EXPECT_EQ(history.lanes()[lane].tokens.size(), to_index(std::min(row, 7)) + 1);
            EXPECT_EQ(history.lanes()[lane].ended, row >= 7) << lane;
        }
    }
}

TEST(RunHistory, AnotherRunOrARunGoneBackStartsOver) {
    Maker first, second(testing_trace::make_run(2));
    first.add_lane(0, 4);
    first.add_lane(1, 4);
    second.add_lane(0, 0);
    StepList steps{first.next().step, first.next().step, first.next().step};
    RunHistory history;
    history.update(steps);
    EXPECT_EQ(history.lanes().size(), 2u);
    history.update({second.next().step});
    EXPECT_EQ(history.lanes().size(), 1u);
    EXPECT_EQ(history.run().id, 2u);
    EXPECT_EQ(history.last_row(), 5);
    EXPECT_EQ(history.evicted_at(0, 0, 0), -1);
    history.update({steps[0]});
    EXPECT_EQ(history.evicted_at(0, 0, 0), 5);
    history.update(steps);
    history.update({steps[0], steps[1]});
    EXPECT_EQ(history.last_row(), 6);
    EXPECT_EQ(history.evicted_at(0, 0, 3), -1);  // row 7's evictions are forgotten
    history.update({});
    EXPECT_TRUE(history.empty());
}

}  // namespace
}  // namespace keyhole::test_run_history
