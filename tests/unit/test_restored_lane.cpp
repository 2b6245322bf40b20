// A removed lane comes back: at once it is as if it had never gone; later it has read lane 0's tokens.
#include "engine/base/index.h"
#include "engine/device/make_backend.h"
#include "engine/run/run_settings.h"
#include "engine/trace/trace_file.h"
#include "tests/reference/session_run.h"
#include "tests/reference/temp_folder.h"
#include "tests/reference/tiny_model.h"

#include <gtest/gtest.h>

namespace reference::test_restored_lane {
namespace {

constexpr int kPrompt = 24, kSteps = 12;
const char* const kLanes[] = {"full", "h2o:budget=10", "window:budget=8,prefill=stepwise",
                              "keyformer:budget=12,seed=3", "tova:budget=9,scope=layer,shadow=on"};
using Commands = std::vector<std::pair<int, std::string>>;

class RestoredLane : public ::testing::Test {
  protected:
    RestoredLane()
        : tiny_({.n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .head_dim = 8, .seed = 11}),
          model_(keyhole::load_model(tiny_.folder())) {}

    SessionRun run(bool follow, const Commands& commands) const {
        keyhole::RunSpec spec =
            run_spec(random_text(kPrompt - 1, 3), {std::begin(kLanes), std::end(kLanes)}, kSteps);
        spec.ignore_eos = true;
        spec.follow = follow;
        return run_session(model_, spec, commands);
    }

    TinyModel tiny_;
    std::shared_ptr<const keyhole::Model> model_;
};

/// Removed and restored between two steps, with any policy and a past of commands: every later row has the
/// same bits, and the records go on with the same lane.
TEST_F(RestoredLane, AtOnceItIsAsIfItHadNeverGone) {
    for (const bool follow : {true, false})
        for (std::size_t lane = 1; lane < std::size(kLanes); ++lane) {
            const Commands past = {{1, fmt::format("evict {} {} L1", lane, kPrompt)},
                                   {2, fmt::format("pin {} {}", lane, kPrompt + 1)}};
            Commands also = past;
            also.emplace_back(4, fmt::format("remove {}", lane));
            also.emplace_back(4, fmt::format("restore {} {}", lane, kLanes[lane]));
            const SessionRun straight = run(follow, past), bent = run(follow, also);
            EXPECT_EQ(bent.sink.rows, straight.sink.rows) << follow << " " << kLanes[lane];
            // Each eviction is in one record.
            for (std::size_t step = 0; step < straight.steps.size(); ++step)
                EXPECT_EQ(bent.lane(step, lane).evictions, straight.lane(step, lane).evictions) << step;
            const keyhole::RunHistory a = history_of(straight), b = history_of(bent);
            ASSERT_EQ(b.lanes().size(), std::size(kLanes));
            for (std::size_t i = 0; i < std::size(kLanes); ++i) {
                EXPECT_EQ(b.lanes()[i].tokens, a.lanes()[i].tokens) << i;
                EXPECT_EQ(b.lanes()[i].evicted_at, a.lanes()[i].evicted_at) << i;
            }
        }
}

/// After a gap in a run that follows lane 0, the lane has read what it would have read; only the records of
/// the gap are missing.
TEST_F(RestoredLane, AfterAGapItHasReadLane0sTokens) {
    constexpr int kGone = 3, kBack = 8;  // after these decode rows
    for (std::size_t lane = 1; lane < std::size(kLanes); ++lane) {
        const SessionRun straight = run(true, {});
        const SessionRun bent = run(true, {{kGone, fmt::format("remove {}", lane)},
                                           {kBack, fmt::format("restore {} {}", lane, kLanes[lane])}});
        for (const auto& [key, row] : straight.sink.rows) {
            const auto& [at, id] = key;
            const bool missing =
                id == static_cast<int>(lane) && at >= kPrompt + kGone && at < kPrompt + kBack;
            EXPECT_EQ(bent.sink.rows.contains(key), !missing) << at << " " << id;
            if (!missing) {
                EXPECT_EQ(bent.sink.rows.at(key).next_logits, row.next_logits) << at << " " << id;
                EXPECT_EQ(bent.sink.rows.at(key).token, row.token) << at << " " << id;
            }
        }
        const keyhole::RunHistory a = history_of(straight), b = history_of(bent);
        ASSERT_EQ(b.lanes().size(), std::size(kLanes));
        EXPECT_EQ(b.lanes()[lane].tokens, a.lanes()[lane].tokens);
        EXPECT_EQ(b.lanes()[lane].evicted_at, a.lanes()[lane].evicted_at);
        // A trace keeps this, and a replay makes it again.
        const TempFolder folder("restored");
        const auto file = folder.path() / "run.keyhole";
        keyhole::StepList steps(bent.steps.begin(), bent.steps.end());
        keyhole::write_trace(steps, file);
        keyhole::RunHistory read;
        read.update(keyhole::read_trace(file));
        ASSERT_EQ(read.lanes().size(), std::size(kLanes));
        EXPECT_EQ(read.lanes()[lane].tokens, a.lanes()[lane].tokens);
        for (int g = 0; g < a.layout(static_cast<int>(lane)).n_kv_heads(); ++g)
            for (int p = 0; p < a.n_positions(); ++p)
                EXPECT_EQ(read.evicted_at(static_cast<int>(lane), g, p),
                          a.evicted_at(static_cast<int>(lane), g, p));
        std::string notice;
        const auto backend = keyhole::make_backend(model_, {keyhole::BackendChoice::cpu, 1, 0}, &notice);
        KeepRows again;
        keyhole::replay(model_, *backend, bent.as_run, 1000, &again, [](const auto&) {});
        EXPECT_EQ(again.rows, bent.sink.rows);
    }
}

/// A rewind to between the removal and the return has neither; the log then knows the lanes of that step.
TEST_F(RestoredLane, ARewindTakesBothBack) {
    keyhole::RunSpec spec =
        run_spec(random_text(kPrompt - 1, 3), {"full", "h2o:budget=10", "tova:budget=9"}, 40);
    spec.ignore_eos = true;
    std::string notice;
    const auto backend = keyhole::make_backend(model_, {keyhole::BackendChoice::cpu, 1, 0}, &notice);
    keyhole::Session session(model_, *backend, spec, nullptr, std::size_t{1} << 24);
    session.prefill();
    const auto step = [&](int n) {
        for (int i = 0; i < n; ++i) session.step();
    };
    step(2);
    session.apply(keyhole::parse_command("remove 1"));
    step(2);
    session.apply(keyhole::parse_command("restore 1 h2o:budget=10"));
    EXPECT_EQ(session.lane_ids(), (std::vector<int>{0, 1, 2}));
    step(2);
    const keyhole::RunSpec log = session.run_spec();
    EXPECT_EQ(keyhole::settings_at(log).lane_specs()[1], keyhole::parse_lane_spec("h2o:budget=10"));
    const int between = kPrompt + 2;
    EXPECT_EQ(keyhole::settings_at(log, between).lanes.size(), 2u);
    // To go there with the present lanes: the one after the missing one joins anew, so that all keep order.
    std::vector<std::string> commands;
    for (const keyhole::Command& command :
         keyhole::settings_since(log, between, keyhole::settings_at(log).lane_specs(), log.follow))
        commands.push_back(keyhole::format_command(command));
    EXPECT_EQ(commands, (std::vector<std::string>{"remove 1", "add h2o:budget=10", "add tova:budget=9"}));
    session.apply(keyhole::parse_command(fmt::format("rewind {}", between)));
    EXPECT_EQ(session.lane_ids(), (std::vector<int>{0, 2}));
    session.apply(keyhole::parse_command("restore 1 h2o:budget=10"));
    EXPECT_EQ(session.lane_ids(), (std::vector<int>{0, 1, 2}));
}

TEST_F(RestoredLane, ThatIsNotKnownIsRefused) {
    keyhole::RunSpec spec = run_spec(random_text(kPrompt - 1, 3), {"full", "h2o:budget=10"}, 40);
    std::string notice;
    const auto backend = keyhole::make_backend(model_, {keyhole::BackendChoice::cpu, 1, 0}, &notice);
    keyhole::Session session(model_, *backend, spec, nullptr, 0);
    session.prefill();
    session.apply(keyhole::parse_command("remove 1"));
    for (const char* text : {"restore 1 h2o:budget=11", "restore 2 h2o:budget=10"})
        EXPECT_NE(
            error_of([&] { session.apply(keyhole::parse_command(text)); }, keyhole::ErrorCode::wrong_use)
                .find("was removed"),
            std::string::npos);
    session.apply(keyhole::parse_command("restore 1 h2o:budget=10"));
    EXPECT_THROW(session.apply(keyhole::parse_command("restore 1 h2o:budget=10")), keyhole::Error);
    EXPECT_EQ(session.lane_ids(), (std::vector<int>{0, 1}));
}

}  // namespace
}  // namespace reference::test_restored_lane
