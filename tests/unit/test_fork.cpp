// Copies of lanes, tokens evicted and pinned by the user, and a shadow switched on in mid-run.
#include "engine/base/index.h"
#include "engine/device/make_backend.h"
#include "engine/trace/run_history.h"
#include "engine/trace/trace_file.h"
#include "tests/reference/session_run.h"
#include "tests/reference/tiny_model.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>

namespace reference::test_fork {
namespace {

using keyhole::ErrorCode;
using keyhole::parse_command;

constexpr int kPrompt = 20;

class SessionFork : public ::testing::Test {
  protected:
    SessionFork()
        : tiny_({.n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .head_dim = 8, .seed = 21}),
          model_(keyhole::load_model(tiny_.folder())) {}

    /// commands: each with the decode row that it follows.
    SessionRun run(const std::vector<std::string>& lanes,
                   const std::vector<std::pair<int, std::string>>& commands, int n_generate = 20) const {
        keyhole::RunSpec spec = run_spec(random_text(kPrompt - 1, 5), lanes, n_generate);
        spec.ignore_eos = true;
        spec.requested.attention = spec.requested.scores = true;
        return run_session(model_, spec, commands);
    }

    TinyModel tiny_;
    std::shared_ptr<const keyhole::Model> model_;
};

TEST_F(SessionFork, AnUnchangedForkGoesOnLikeItsParent) {
    for (const char* spec : {"h2o:budget=8", "keyformer:budget=9,seed=4", "a2sf:budget=7", "tova:budget=6"}) {
        const SessionRun forked = run({"full", spec}, {{4, "fork 1"}});
        for (std::size_t t = 5; t < forked.steps.size(); ++t) {
            const auto &parent = forked.sink.rows.at({forked.steps[t]->row, 1}),
                       &fork = forked.sink.rows.at({forked.steps[t]->row, 2});
            ASSERT_EQ(parent.next_logits, fork.next_logits) << spec << ", step " << t;
            ASSERT_EQ(parent.evictions, fork.evictions) << spec << ", step " << t;
            ASSERT_EQ(forked.lane(t, 1).log_prob, forked.lane(t, 2).log_prob) << "of the token it took over";
        }
        EXPECT_EQ(forked.lane(5, 2).info->forked_from, 1);
        EXPECT_EQ(forked.lane(5, 2).info->forked_at, kPrompt - 1 + 4);
        EXPECT_EQ(forked.lane(5, 2).info->spec, forked.lane(5, 1).info->spec);
        // A reader gives the fork its parent's history.
        const keyhole::RunHistory history = history_of(forked);
        ASSERT_EQ(history.lanes().size(), 3u);
        EXPECT_EQ(history.lanes()[2].tokens, history.lanes()[1].tokens);
        EXPECT_EQ(history.lanes()[2].evicted_at, history.lanes()[1].evicted_at);
        EXPECT_EQ(history.lanes()[2].forked_from, 1);
        EXPECT_TRUE(std::any_of(history.lanes()[2].evicted_at.begin(), history.lanes()[2].evicted_at.end(),
                                [](int row) { return row >= 0 && row < kPrompt; }));
    }
}

TEST_F(SessionFork, AnotherSpecActsAsASwitchOfTheCopy) {
    const SessionRun forked = run({"full", "h2o:budget=12"}, {{4, "fork 1 a2sf:budget=5"}});
    const SessionRun switched = run({"full", "h2o:budget=12"}, {{4, "lane 1 a2sf:budget=5"}});
    for (std::size_t t = 5; t < forked.steps.size(); ++t) {
        const int row = forked.steps[t]->row;
        ASSERT_EQ(forked.sink.rows.at({row, 2}), switched.sink.rows.at({row, 1})) << "row " << row;
        ASSERT_EQ(forked.lane(t, 2).evictions, switched.lane(t, 1).evictions) << "row " << row;
    }
}

TEST_F(SessionFork, ManyThingsBetweenTwoRowsReachTheReader) {
    // Commands between two rows: an eviction in the parent, a fork of a fork, a fork of a lane just added,
    // and the parent's removal.
    const SessionRun run_ = run({"full", "h2o:budget=8"}, {{4, "evict 1 23"},
                                                           {4, "fork 1"},
                                                           {4, "fork 2"},
                                                           {4, "add window:budget=5"},
                                                           {4, "fork 4"},
                                                           {4, "remove 1"}});
    const keyhole::RunHistory history = history_of(run_);
    ASSERT_EQ(history.lanes().size(), 6u);  // 0, 1 (gone), 2, 3, 4, 5
    for (int g = 0; g < history.run().layout.n_kv_heads(); ++g)
        for (int p = 0; p < kPrompt + 4; ++p) {
            EXPECT_EQ(history.evicted_at(2, g, p), history.evicted_at(3, g, p));
            EXPECT_EQ(history.evicted_at(4, g, p), history.evicted_at(5, g, p));
            EXPECT_EQ(history.evicted_at(2, g, 23), 23);
        }
    for (std::size_t lane = 1; lane < run_.steps.back()->lanes.size(); ++lane) {
        const auto& record = run_.steps.back()->lanes[lane];
        const int index = *history.lane_from_id(record.info->id);
        std::int64_t stored = 0;
        for (int g = 0; g < history.run().layout.n_kv_heads(); ++g)
            for (int p = 0; p <= history.last_row(); ++p)
                stored += history.stored(index, g, p, history.last_row());
        EXPECT_EQ(stored, record.use.stored_tokens) << "lane " << lane;
    }
}

TEST_F(SessionFork, HandEvictionsTakeTheHeadTheLayerOrAll) {
    const SessionRun run_ = run({"full"}, {{2, "evict 0 3 L1.H1"}, {3, "evict 0 5 L0"}, {4, "evict 0 7"}});
    const keyhole::RunHistory history = history_of(run_);
    // KV heads: layer 0 has 0 and 1, layer 1 has 2 and 3; query heads 0 and 1 read the first of each.
    const int row = kPrompt - 1;
    EXPECT_EQ(run_.lane(3, 0).evictions, (std::vector<keyhole::Eviction>{{2, 3, row + 2}}));
    EXPECT_EQ(run_.lane(4, 0).evictions, (std::vector<keyhole::Eviction>{{0, 5, row + 3}, {1, 5, row + 3}}));
    EXPECT_EQ(run_.lane(5, 0).evictions.size(), 4u);
    EXPECT_TRUE(history.attended(0, 2, 3, row + 2));
    EXPECT_FALSE(history.attended(0, 2, 3, row + 3));
    EXPECT_TRUE(history.attended(0, 3, 3, row + 3));
}

TEST_F(SessionFork, RefusalsSayWhatIsStoredAndWhenItLeft) {
    run({"full", "window:budget=5"}, {{3, "fork 1"}}, 4);
    keyhole::RunSpec spec = run_spec(random_text(kPrompt - 1, 5), {"full", "window:budget=5"}, 8);
    std::string notice;
    const auto backend = keyhole::make_backend(model_, {keyhole::BackendChoice::cpu, 2, 0}, &notice);
    keyhole::Session session(model_, *backend, spec);
    session.prefill();
    session.step();
    session.step();
    const auto refusal = [&](const char* text) {
        return error_of([&] { session.apply(parse_command(text)); }, ErrorCode::wrong_use);
    };
    const std::string gone = refusal("evict 1 16 L1.H0");  // 17..21 are stored after row 21
    EXPECT_NE(gone.find("left after step 21"), std::string::npos) << gone;
    EXPECT_NE(gone.find("17-21"), std::string::npos) << gone;
    EXPECT_EQ(refusal("pin 1 0").find("nothing"), std::string::npos);
    refusal("evict 1 22");     // not yet
    refusal("evict 2 0");      // no such lane
    refusal("pin 0 0 L2");     // no such layer
    refusal("pin 0 0 L1.H4");  // no such head
    refusal("unpin 0 0");      // not pinned
    refusal("fork 2");         // no such lane
    refusal("fork 0 h2o:budget=8,alpha@L7=0.5");
    EXPECT_TRUE(session.log().empty());
    session.apply(parse_command("evict 1 18 L0"));
    session.apply(parse_command("evict 1 18"));  // where it still is
    EXPECT_NE(refusal("evict 1 18").find("left after step 21"), std::string::npos);
}

TEST_F(SessionFork, PinsHoldUntilTheyAreTakenOff) {
    const SessionRun run_ = run({"full", "window:budget=5"}, {{2, "pin 1 18 L0"}, {9, "unpin 1 18"}});
    const keyhole::RunHistory history = history_of(run_);
    const int row = kPrompt - 1;
    for (int r = row + 3; r <= row + 9; ++r) {
        EXPECT_TRUE(history.stored(1, 0, 18, r)) << r;
        EXPECT_EQ(history.pinned(1, 0, 18, r), true) << r;
        EXPECT_FALSE(history.pinned(1, 2, 18, r));
    }
    EXPECT_FALSE(history.stored(1, 2, 18, row + 6));
    EXPECT_FALSE(history.stored(1, 0, 18, row + 10));
    EXPECT_FALSE(history.pinned(1, 0, 18, row + 10));
    // The list of pins is shared until it changes.
    EXPECT_EQ(run_.lane(4, 1).pins.get(), run_.lane(8, 1).pins.get());
    // A fork copies the pins; its own changes stay its own.
    const SessionRun forked =
        run({"full", "window:budget=5"}, {{2, "pin 1 18"}, {3, "fork 1"}, {3, "unpin 2 18"}});
    EXPECT_TRUE(forked.lane(6, 1).pins);
    EXPECT_FALSE(forked.lane(6, 2).pins);
}

TEST_F(SessionFork, AShadowSwitchedOnLateSeesTheWholePastAndChangesNothingElse) {
    const std::vector<std::pair<int, std::string>> past = {
        {2, "lane 1 h2o:budget=7"}, {3, "fork 1"}, {4, "evict 2 22"}, {5, "pin 2 24 L1"}};
    auto late = past, straight = past;
    late.push_back({8, "lane 2 h2o:budget=7,shadow=on"});
    straight.push_back({8, "lane 2 h2o:budget=7"});
    const SessionRun a = run({"full", "h2o:budget=10"}, late), b = run({"full", "h2o:budget=10"}, straight);
    ASSERT_EQ(a.sink.rows.size(), b.sink.rows.size());
    for (const auto& [key, kept] : a.sink.rows)
        ASSERT_EQ(kept, b.sink.rows.at(key)) << "row " << key.first << ", lane " << key.second;
    for (std::size_t t = 0; t < a.steps.size(); ++t)
        for (std::size_t n = 0; n < a.steps[t]->lanes.size(); ++n) {
            EXPECT_EQ(a.lane(t, n).evictions, b.lane(t, n).evictions) << "step " << t << ", lane " << n;
            EXPECT_EQ(a.lane(t, n).pins != nullptr, b.lane(t, n).pins != nullptr);
        }
    EXPECT_EQ(a.lane(9, 2).info->forked_from, 1);
    EXPECT_TRUE(a.lane(9, 2).info->policy.shadow);
}

TEST_F(SessionFork, HiddenPositionsAreRecordedAndLeftOut) {
    const SessionRun run_ = run({"full", "dilated:budget=4,dilation=1"}, {});
    const keyhole::RunHistory history = history_of(run_);
    const int row = history.last_row();
    ASSERT_TRUE(run_.steps.back()->lanes[1].hidden);
    EXPECT_FALSE(run_.steps.back()->lanes[0].hidden);
    // w = 4, dilation 1: row i attends i, i - 2, i - 4, i - 6; the span between is stored.
    EXPECT_EQ(history.attended_positions(1, 0, row),
              (std::vector<std::int32_t>{row - 6, row - 4, row - 2, row}));
    EXPECT_TRUE(history.hidden(1, 0, row - 1, row));
    EXPECT_FALSE(history.hidden(1, 0, row - 2, row));
    EXPECT_GT(history.held_positions(1, 0, row).size(), 4u);
    EXPECT_EQ(run_.steps.back()->lanes[1].attended_tokens, 4 * history.run().layout.n_kv_heads());
    std::vector<float> attention(keyhole::to_index(row) + 1);
    ASSERT_TRUE(history.attention_row(1, row, 0, 0, attention));
    EXPECT_EQ(attention[keyhole::to_index(row) - 1], 0.0f);
    EXPECT_GT(attention[keyhole::to_index(row)], 0.0f);
}

TEST_F(SessionFork, TheTraceFileKeepsForksPinsHiddenPositionsAndBranches) {
    keyhole::RunSpec spec =
        run_spec(random_text(kPrompt - 1, 5), {"full", "dilated:budget=4,dilation=2"}, 12);
    spec.ignore_eos = spec.follow = true;
    spec.requested.attention = spec.requested.scores = true;
    const int row = kPrompt - 1;
    for (const auto& [at, text] : std::vector<std::pair<int, std::string>>{{2, "pin 1 20"},
                                                                           {3, "fork 1 window:budget=3"},
                                                                           {8, "rewind 25"},
                                                                           {7, "unpin 2 20 L0"},
                                                                           {8, "evict 0 2"}})
        spec.commands.push_back({row + at, parse_command(text)});
    const auto path =
        std::filesystem::temp_directory_path() / fmt::format("keyhole-fork-{}.keyhole", getpid());
    std::string notice;
    const auto backend = keyhole::make_backend(model_, {keyhole::BackendChoice::cpu, 2, 0}, &notice);
    keyhole::Recorder recorder;
    keyhole::TraceWriter writer(path);
    keyhole::replay(model_, *backend, spec, row + 12, nullptr,
                    [&](std::shared_ptr<const keyhole::StepTrace> step) {
                        recorder.push(step);
                        writer.append(*step);
                    });
    writer.finish();
    const keyhole::StepList live = recorder.snapshot().steps, read = keyhole::read_trace(path);
    std::filesystem::remove(path);
    ASSERT_EQ(live.size(), read.size());
    bool any_hidden = false;
    for (std::size_t t = 0; t < live.size(); ++t) {
        EXPECT_EQ(live[t]->row, read[t]->row);
        EXPECT_EQ(live[t]->branch, read[t]->branch);
        ASSERT_EQ(live[t]->other_branches != nullptr, read[t]->other_branches != nullptr);
        if (live[t]->other_branches) {
            EXPECT_EQ(*live[t]->other_branches, *read[t]->other_branches);
        }
        ASSERT_EQ(live[t]->lanes.size(), read[t]->lanes.size());
        for (std::size_t n = 0; n < live[t]->lanes.size(); ++n) {
            const keyhole::LaneRecord &a = live[t]->lanes[n], &b = read[t]->lanes[n];
            EXPECT_EQ(a.info->forked_from, b.info->forked_from);
            EXPECT_EQ(a.info->forked_at, b.info->forked_at);
            EXPECT_EQ(a.evictions, b.evictions);
            ASSERT_EQ(a.pins != nullptr, b.pins != nullptr) << "row " << live[t]->row << ", lane " << n;
            if (a.pins) {
                EXPECT_EQ(*a.pins, *b.pins);
            }
            ASSERT_EQ(a.hidden != nullptr, b.hidden != nullptr);
            if (!a.hidden) continue;
            any_hidden = true;
            EXPECT_EQ(*a.hidden, *b.hidden);
        }
    }
    EXPECT_TRUE(any_hidden);
    EXPECT_EQ(read.front()->run->start.lanes, live.front()->run->start.lanes);
    EXPECT_TRUE(read.front()->run->start.follow);
    EXPECT_EQ(read.back()->branch, 2);
}

}  // namespace
}  // namespace reference::test_fork
