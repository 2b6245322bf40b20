// The engine thread, its queue and its recorder, used as the window does. ThreadSanitizer runs select these
// suites by name.
#include "engine/backend/memory_need.h"
#include "engine/base/index.h"
#include "engine/live/command_queue.h"
#include "engine/live/engine.h"
#include "engine/trace/run_history.h"
#include "tests/reference/sanitizer.h"
#include "tests/reference/session_run.h"
#include "tests/reference/tiny_model.h"
#include "tests/reference/wakes.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace reference::test_engine {
namespace {

using keyhole::EnginePhase;
using namespace std::chrono_literals;

class EngineThread : public ::testing::Test {
  protected:
    EngineThread()
        : tiny_({.n_ctx = 4096, .seed = 8}),
          engine_({keyhole::BackendChoice::cpu, 2, 0}, wakes_.callback()) {}

    template <class Condition>
    bool wait_for(Condition condition, std::chrono::milliseconds limit = 60s) {
        return wakes_.wait_until(condition, limit);
    }
    bool wait_for_phase(EnginePhase phase) {
        return wait_for([&] { return engine_.status().phase == phase; });
    }
    /// Returns whether every request so far has taken effect or was refused.
    bool settled() const { return engine_.status().handled == engine_.last_request(); }
    bool wait_until_settled() {
        return wait_for([&] { return settled(); });
    }
    /// Waits until the engine is idle, and returns whether it stays so: a row that it still decoded would
    /// come before it handles another request.
    bool is_at_rest() {
        if (!wait_for_phase(EnginePhase::idle)) return false;
        const auto before = engine_.recorder().version();
        engine_.set_speed(0);
        return wait_until_settled() && engine_.recorder().version() == before;
    }
    keyhole::StepList steps() { return engine_.recorder().snapshot().steps; }
    bool wait_for_row(int row) {
        return wait_for([&] {
            const auto all = steps();
            return !all.empty() && all.back()->row >= row;
        });
    }
    static keyhole::RunSpec spec(int n_generate) {
        keyhole::RunSpec run = run_spec(random_text(19, 2), {"full", "h2o:budget=6"}, n_generate);
        run.ignore_eos = true;
        run.requested.attention = run.requested.scores = true;
        return run;
    }
    void start(int n_generate) {
        engine_.start(tiny_.folder(), spec(n_generate));
        ASSERT_TRUE(wait_for_row(19)) << engine_.status().message;
    }

    TinyModel tiny_;
    Wakes wakes_;
    keyhole::Engine engine_;  // last member: its thread ends first
};

/// Lanes answer while the engine is at rest and between the rows of a run; requests go first.
TEST_F(EngineThread, AnswersForEachLaneBesideTheRun) {
    keyhole::RunSpec run = spec(0);
    run.follow = true;
    run.answer_end = keyhole::AnswerEnd{{}, 12};
    const auto answered = [&](std::size_t n) {
        const keyhole::EngineStatus now = engine_.status();
        return settled() && !now.answering && now.answers != nullptr && now.answers->size() == n;
    };
    engine_.start(tiny_.folder(), run);
    engine_.set_speed(200);
    engine_.play();
    for (const char* command : {"lane 1 h2o:budget=5", "add tova:budget=6", "lane 1 h2o:budget=7"})
        engine_.send(keyhole::parse_command(command));
    ASSERT_TRUE(wait_for_row(40));
    EXPECT_TRUE(wait_for([&] { return engine_.status().answers_need_stop; }));
    engine_.stop();  // lanes with new settings read the prompt again only now
    ASSERT_TRUE(wait_for([&] { return answered(3); })) << engine_.status().message;
    EXPECT_FALSE(engine_.status().answers_need_stop);
    const auto answers = engine_.status().answers;
    for (const keyhole::LaneAnswer& answer : *answers) {
        EXPECT_TRUE(answer.complete && answer.cut);
        EXPECT_EQ(answer.tokens.size(), 12u);
    }
    // The first answer is what lane 0 went on to say.
    for (std::size_t i = 0; i < 12; ++i)
        EXPECT_EQ(steps()[i + 1]->lanes[0].token, (*answers)[0].tokens[i]) << i;
    engine_.send(keyhole::RemoveLane{2});
    ASSERT_TRUE(wait_for([&] { return answered(2); }));
}

/// One change of the user may take several requests: all have an effect, or none.
TEST_F(EngineThread, WhatBelongsToARefusedCommandIsDropped) {
    start(30);
    engine_.step(6);
    ASSERT_TRUE(wait_for_row(25));
    const auto change = [&](int to_row) {
        const keyhole::Engine::Together together(engine_);
        engine_.stop();
        engine_.send(keyhole::Rewind{to_row});
        engine_.send(keyhole::RemoveLane{1});
        engine_.step(2);
    };
    change(77);  // no such row
    ASSERT_TRUE(wait_until_settled());
    const keyhole::EngineStatus refused = engine_.status();
    EXPECT_TRUE(refused.was_refused(refused.handled)) << "the steps, which came last";
    EXPECT_NE(refused.refusal_message.find("77"), std::string::npos) << refused.refusal_message;
    EXPECT_EQ(refused.lane_ids.size(), 2u);
    EXPECT_TRUE(is_at_rest());
    EXPECT_EQ(steps().back()->row, 25);
    engine_.step(1);  // belongs to nothing
    ASSERT_TRUE(wait_for_row(26));
    EXPECT_FALSE(engine_.status().was_refused(engine_.last_request()));
    change(22);
    ASSERT_TRUE(wait_until_settled() && wait_for_phase(EnginePhase::idle));
    EXPECT_EQ(engine_.status().lane_ids.size(), 1u);
    EXPECT_EQ(steps().back()->row, 24);
}

TEST_F(EngineThread, StartProcessesThePromptAndWaits) {
    EXPECT_EQ(engine_.model(), nullptr);
    start(10);
    EXPECT_TRUE(is_at_rest());
    EXPECT_EQ(steps().size(), 1u);
    EXPECT_NE(engine_.model(), nullptr);
    EXPECT_NE(engine_.status().backend.find("cpu"), std::string::npos);
    EXPECT_GT(wakes_.count(), 0);
}

// A window left alone must not grow without bound: full lanes keep every token.
TEST_F(EngineThread, ARunWithoutEndPausesAtTheTrainedContextAndAtItsDoubles) {
    const TinyModel tiny({.n_ctx = 32, .seed = 8});
    engine_.start(tiny.folder(), spec(0));
    ASSERT_TRUE(wait_for_row(19)) << engine_.status().message;
    for (const int pause : {32, 64, 128}) {
        engine_.play();
        ASSERT_TRUE(wait_for_row(pause - 1));
        ASSERT_TRUE(wait_for_phase(EnginePhase::idle));
        EXPECT_EQ(steps().back()->row, pause - 1);
        EXPECT_NE(engine_.status().message.find(fmt::format("paused at {} tokens", pause)), std::string::npos)
            << engine_.status().message;
    }
    engine_.step(3);  // an explicit number of rows runs, whatever the context
    ASSERT_TRUE(wait_for_row(130));
    EXPECT_TRUE(wait_for_phase(EnginePhase::idle));
    const keyhole::EngineMemory memory = engine_.status().memory;
    EXPECT_EQ(memory.weights, keyhole::weight_bytes(*engine_.model()));
    EXPECT_GT(memory.caches, 0);
    EXPECT_GT(memory.checkpoints, 0);
    EXPECT_LE(memory.checkpoints, static_cast<std::int64_t>(keyhole::kCheckpointBytes));
}

TEST_F(EngineThread, StepsDecodeSoManyRows) {
    start(100);
    engine_.step();
    ASSERT_TRUE(wait_for_row(20));
    engine_.step(5);
    ASSERT_TRUE(wait_for_row(25));
    EXPECT_TRUE(is_at_rest());
    EXPECT_EQ(steps().back()->row, 25);
}

TEST_F(EngineThread, AFewStepsGiveNoSpeed) {
    start(60);
    engine_.step(12);
    ASSERT_TRUE(wait_until_settled() && wait_for_phase(EnginePhase::idle));
    EXPECT_GT(engine_.status().steps_per_s, 0);
    engine_.step(1);
    ASSERT_TRUE(wait_until_settled() && wait_for_phase(EnginePhase::idle));
    EXPECT_EQ(engine_.status().steps_per_s, 0);
}

TEST_F(EngineThread, PlaysToTheEnd) {
    start(40);
    engine_.play();
    ASSERT_TRUE(wait_for_phase(EnginePhase::finished));
    EXPECT_EQ(steps().back()->row, 59);
    EXPECT_FALSE(engine_.status().message.empty());
}

TEST_F(EngineThread, RecordsAreThoseOfTheSession) {
    start(40);
    engine_.play();
    ASSERT_TRUE(wait_for_phase(EnginePhase::finished));
    const SessionRun plain = run_session(keyhole::load_model(tiny_.folder()), spec(40));
    const keyhole::StepList all = steps();
    ASSERT_EQ(all.size(), plain.steps.size());
    for (std::size_t t = 0; t < all.size(); ++t)
        for (std::size_t n = 0; n < 2; ++n) {
            EXPECT_EQ(all[t]->lanes[n].token, plain.lane(t, n).token);
            EXPECT_EQ(all[t]->lanes[n].evictions, plain.lane(t, n).evictions);
            EXPECT_EQ(all[t]->lanes[n].entropy, plain.lane(t, n).entropy);
        }
}

TEST_F(EngineThread, AFinishedRunIsRewoundGoesOnAndComesBackToItsBranch) {
    start(40);
    engine_.step(10);
    ASSERT_TRUE(wait_for_row(29));
    engine_.send(keyhole::parse_command("fork 1 tova:budget=5"));
    engine_.play();
    ASSERT_TRUE(wait_for_phase(EnginePhase::finished));
    const keyhole::StepList first = steps();
    engine_.send(keyhole::parse_command("rewind 25"));
    ASSERT_TRUE(wait_until_settled());
    EXPECT_EQ(engine_.status().phase, EnginePhase::idle);
    EXPECT_EQ(steps().back()->row, 25);
    EXPECT_EQ(steps().back().get(), first[6].get());
    ASSERT_EQ(engine_.status().other_branches.size(), 1u);
    EXPECT_TRUE(engine_.status().run.commands.empty());
    engine_.send(keyhole::parse_command("evict 1 25"));
    engine_.play();
    ASSERT_TRUE(wait_for_phase(EnginePhase::finished));
    EXPECT_EQ(steps().back()->lanes.size(), 2u);
    engine_.send(keyhole::parse_command("branch 1"));
    ASSERT_TRUE(wait_until_settled());
    EXPECT_EQ(engine_.status().phase, EnginePhase::finished);
    const keyhole::StepList back = steps();
    ASSERT_EQ(back.size(), first.size());
    for (std::size_t t = 0; t < back.size(); ++t)
        for (std::size_t n = 0; n < back[t]->lanes.size(); ++n) {
            EXPECT_EQ(back[t]->lanes[n].entropy, first[t]->lanes[n].entropy) << t;
            EXPECT_EQ(back[t]->lanes[n].evictions, first[t]->lanes[n].evictions) << t;
        }
    keyhole::RunHistory history;
    history.update(first);
    history.update(back);
    EXPECT_EQ(history.steps().back().get(), back.back().get());
}

TEST_F(EngineThread, StopsWithinOneStep) {
    start(0);
    engine_.play();
    ASSERT_TRUE(wait_for_row(30));
    engine_.stop();
    ASSERT_TRUE(wait_for_phase(EnginePhase::idle));
    const int row = steps().back()->row;
    EXPECT_TRUE(is_at_rest());
    EXPECT_EQ(steps().back()->row, row);
    engine_.step();  // decoding continues from there
    EXPECT_TRUE(wait_for_row(row + 1));
}

TEST_F(EngineThread, AnAnswerAboutARowThatIsTakenBackGoes) {
    start(0);
    engine_.step(8);
    ASSERT_TRUE(wait_for_row(18 + 8));
    ASSERT_TRUE(wait_for_phase(EnginePhase::idle));
    engine_.request_counterfactual(1, 5);
    ASSERT_TRUE(wait_for([&] { return engine_.status().counterfactual != nullptr; }))
        << engine_.status().message;
    engine_.send(keyhole::parse_command("pin 1 24"));
    ASSERT_TRUE(wait_until_settled());
    EXPECT_NE(engine_.status().counterfactual, nullptr);
    engine_.send(keyhole::parse_command("rewind 22"));
    ASSERT_TRUE(wait_until_settled());
    EXPECT_EQ(engine_.status().message, "");
    EXPECT_EQ(engine_.status().counterfactual, nullptr);
}

/// Returns how many rows a lane replays: enough to be stopped in between. usually: without ThreadSanitizer,
/// which makes them slow.
int n_rows_to_stop_in(int usually) {
    return reference::under_thread_sanitizer() ? usually / 2 : usually;
}

// Lanes that replay a long history: the status shows it once it takes a while, a stop takes effect within one
// row, and the session stays unchanged.
TEST_F(EngineThread, ReplaysAreShownAndStopped) {
    engine_.start(tiny_.folder(), [] {
        keyhole::RunSpec run = spec(0);
        run.requested = {};
        return run;
    }());
    int far = n_rows_to_stop_in(1500);
    engine_.step(far - 19);
    ASSERT_TRUE(wait_for_row(far));
    ASSERT_TRUE(wait_for_phase(EnginePhase::idle));
    // A plain stop ends decoding only: the change runs to its end. If it ends before the status shows it, the
    // test repeats it with more rows.
    std::string work;
    double most = 0;
    std::size_t n_commands = 1;
    for (;; n_commands += 2) {
        engine_.send(keyhole::parse_command("lane 1 h2o:budget=6,shadow=on"));
        engine_.stop();
        ASSERT_TRUE(wait_for([&] {
            const keyhole::EngineStatus status = engine_.status();
            if (!status.work.empty()) {
                EXPECT_GE(status.progress, most);
                most = status.progress;
                work = status.work;
            }
            return status.handled == engine_.last_request();
        }));
        if (!work.empty() || far > 20000) break;
        engine_.send(keyhole::parse_command("lane 1 h2o:budget=6"));
        engine_.step(far);
        far *= 2;
        ASSERT_TRUE(wait_for_row(far));
        ASSERT_TRUE(wait_for_phase(EnginePhase::idle));
    }
    EXPECT_EQ(engine_.status().message, "");
    EXPECT_EQ(engine_.status().work, "");
    ASSERT_EQ(engine_.status().run.commands.size(), n_commands);
    EXPECT_NE(work.find("lane 1"), std::string::npos) << work;
    EXPECT_GT(most, 0);
    EXPECT_LE(most, 1);
    for (const char* command : {"lane 1 h2o:budget=6,kv=mqa", "add tova:budget=5"}) {
        engine_.send(keyhole::parse_command(command));
        engine_.stop(true);
        engine_.stop(true);  // the user clicks twice
        EXPECT_TRUE(is_at_rest());
        EXPECT_NE(engine_.status().message.find(command), std::string::npos) << engine_.status().message;
    }
    engine_.request_counterfactual(1, 5);
    engine_.stop(true);
    ASSERT_TRUE(wait_until_settled());
    EXPECT_TRUE(
        wait_for([&] { return engine_.status().message.find("token 5 in lane 1") != std::string::npos; }));
    const keyhole::EngineStatus status = engine_.status();
    EXPECT_EQ(status.work, "");
    EXPECT_EQ(status.counterfactual, nullptr);
    EXPECT_EQ(status.run.commands.size(), n_commands);
    EXPECT_EQ(status.phase, EnginePhase::idle);
    engine_.step();
    ASSERT_TRUE(wait_for_row(far + 1));
    EXPECT_EQ(steps().back()->lanes.size(), 2u);
    EXPECT_EQ(steps().back()->lanes[1].info->kv, "gqa:2");
}

// The replay to a branch's end stops at a row, with the commands up to there. It continues on request, or a
// rewind abandons it.
TEST_F(EngineThread, TheWayToABranchIsStopped) {
    const int kFar = n_rows_to_stop_in(1469);
    start(0);
    engine_.step(kFar - 19);
    ASSERT_TRUE(wait_for_row(kFar));
    engine_.send(keyhole::parse_command("add tova:budget=5"));
    engine_.step(50);
    ASSERT_TRUE(wait_for_row(kFar + 50));
    engine_.send(keyhole::parse_command("rewind 30"));
    engine_.step();
    ASSERT_TRUE(wait_for([&] { return steps().back()->row == 31; }));
    engine_.send(keyhole::parse_command("branch 1"));
    ASSERT_TRUE(wait_for_row(60));
    engine_.stop(true);
    ASSERT_TRUE(wait_until_settled());
    ASSERT_TRUE(wait_for([&] { return engine_.status().message.find("on the way") != std::string::npos; }));
    const int row = steps().back()->row;
    ASSERT_LT(row, kFar - 9);
    EXPECT_TRUE(is_at_rest());
    EXPECT_EQ(steps().back()->row, row);
    EXPECT_TRUE(engine_.status().run.commands.empty());
    engine_.send(keyhole::parse_command("remove 1"));
    EXPECT_TRUE(wait_for([&] { return engine_.status().message.find("has to wait") != std::string::npos; }));
    engine_.step(3);
    ASSERT_TRUE(wait_for_row(row + 3));
    EXPECT_TRUE(engine_.status().run.commands.empty());
    engine_.step(kFar + 1 - (row + 3));
    ASSERT_TRUE(wait_for_row(kFar + 1));
    ASSERT_EQ(engine_.status().run.commands.size(), 1u);
    EXPECT_EQ(engine_.status().run.commands[0].row, kFar);
    engine_.send(keyhole::parse_command("rewind 40"));
    engine_.send(keyhole::parse_command("remove 1"));
    ASSERT_TRUE(wait_until_settled());
    EXPECT_EQ(engine_.status().message, "");
    EXPECT_EQ(engine_.status().other_branches.size(), 2u);
    engine_.step();
    ASSERT_TRUE(wait_for([&] { return steps().back()->row == 41; }));
    EXPECT_EQ(steps().back()->lanes.size(), 1u);
}

// A branch command that replays a lane is stopped too, both on the way and when the replay continues: it
// waits.
TEST_F(EngineThread, ACommandOnTheWayToABranchIsStopped) {
    const int kFar = n_rows_to_stop_in(2500);
    keyhole::RunSpec run = spec(0);
    run.requested = {};
    engine_.start(tiny_.folder(), run);
    engine_.step(kFar - 19);
    ASSERT_TRUE(wait_for_row(kFar));
    engine_.send(keyhole::parse_command("lane 1 h2o:budget=6,kv=mqa"));
    engine_.step(2);
    ASSERT_TRUE(wait_for_row(kFar + 2));
    engine_.send(keyhole::parse_command("rewind 30"));
    engine_.step();
    ASSERT_TRUE(wait_for([&] { return steps().back()->row == 31; }));
    engine_.send(keyhole::parse_command("branch 1"));
    ASSERT_TRUE(wait_for_row(60));
    engine_.stop(true);
    ASSERT_TRUE(wait_for_phase(EnginePhase::idle));
    ASSERT_TRUE(wait_until_settled());
    engine_.step(kFar - 1 - steps().back()->row);
    ASSERT_TRUE(wait_for_row(kFar - 1));
    ASSERT_TRUE(wait_for_phase(EnginePhase::idle));

    const auto run_and_stop = [&](int n_rows) {
        for (std::chrono::microseconds pause = 100us; pause < 2s; pause *= 2) {  // until the replay has begun
            engine_.step(n_rows);
            std::this_thread::sleep_for(pause);
            engine_.stop(true);
            EXPECT_TRUE(wait_for_phase(EnginePhase::idle));
            const auto stopped = [&] { return engine_.status().message.find("stopped at step") == 0; };
            if (wait_for(stopped, 100ms)) return;
        }
    };
    for (int i = 0; i < 3; ++i) {
        run_and_stop(1);
        EXPECT_NE(engine_.status().message.find(fmt::format("stopped at step {} on the way", kFar)),
                  std::string::npos)
            << engine_.status().message;
        EXPECT_EQ(steps().back()->row, kFar);
        EXPECT_TRUE(engine_.status().run.commands.empty());
        EXPECT_EQ(engine_.status().work, "");
    }
    engine_.step(2);
    ASSERT_TRUE(wait_for_row(kFar + 2));
    ASSERT_TRUE(wait_for_phase(EnginePhase::idle));
    EXPECT_EQ(engine_.status().work, "");
    ASSERT_EQ(engine_.status().run.commands.size(), 1u);
    EXPECT_EQ(steps().back()->lanes[1].info->kv, "mqa");
}

// A new start does not wait for a lane's replay.
TEST_F(EngineThread, ANewStartStopsAReplay) {
    start(0);
    engine_.step(600);
    ASSERT_TRUE(wait_for_row(619));
    engine_.send(keyhole::parse_command("lane 1 h2o:budget=6,kv=mqa"));
    const keyhole::RequestId replaced = engine_.last_request();
    start(5);
    EXPECT_TRUE(wait_for([&] { return steps().back()->row == 19 && settled(); }));
    EXPECT_TRUE(engine_.status().run.commands.empty());
    EXPECT_NE(engine_.status().refused, replaced) << engine_.status().refusal_message;
    engine_.play();
    EXPECT_TRUE(wait_for_phase(EnginePhase::finished));
    EXPECT_EQ(engine_.status().message.find("stopped"), std::string::npos);
}

TEST_F(EngineThread, CommandsTakeEffectBetweenTokens) {
    start(0);
    engine_.play();
    ASSERT_TRUE(wait_for_row(30));
    engine_.send(keyhole::parse_command("lane 1 h2o:budget=3"));
    engine_.send(keyhole::parse_command("add tova:budget=4"));
    ASSERT_TRUE(wait_for([&] { return steps().back()->lanes.size() == 3; }));
    ASSERT_TRUE(wait_until_settled());
    engine_.stop();
    ASSERT_TRUE(wait_for_phase(EnginePhase::idle));
    const keyhole::StepList all = steps();
    std::size_t at = 0;
    while (all[at]->lanes[1].info->policy.budget == 6) ++at;
    EXPECT_EQ(all[at]->commands.at(0), "lane 1 h2o:budget=3");
    for (std::size_t t = 1; t < all.size(); ++t)
        EXPECT_EQ(all[t]->lanes[1].attended_tokens, 4 * (t < at ? 7 : 4)) << "row " << all[t]->row;
    const auto commands = engine_.status().run.commands;
    ASSERT_EQ(commands.size(), 2u);
    EXPECT_EQ(commands[0].row, all[at]->row - 1);
}

TEST_F(EngineThread, StepsAddUp) {
    start(0);
    engine_.set_speed(50);  // so that the second step comes while the first is decoded
    engine_.step(2);
    engine_.step(3);
    ASSERT_TRUE(wait_until_settled());
    EXPECT_EQ(engine_.status().phase, EnginePhase::running);
    ASSERT_TRUE(wait_for_phase(EnginePhase::idle));
    EXPECT_EQ(steps().back()->row, 19 + 5);
}

TEST_F(EngineThread, ARequestIsHandledOnceItHasTakenEffect) {
    engine_.start(tiny_.folder(), spec(0));
    ASSERT_TRUE(wait_until_settled());
    EXPECT_EQ(engine_.status().handled, 1u);
    EXPECT_EQ(steps().back()->row, 19) << "the prompt is processed";
    engine_.send(keyhole::parse_command("add tova:budget=5"));
    ASSERT_TRUE(wait_until_settled());
    EXPECT_EQ(engine_.status().handled, 2u);
    EXPECT_EQ(engine_.status().run.commands.size(), 1u) << "the log holds it";
    EXPECT_EQ(engine_.status().refused, 0u);
    engine_.start("/nowhere/model", spec(0));
    ASSERT_TRUE(wait_until_settled());
    EXPECT_EQ(engine_.status().handled, 3u);
    EXPECT_EQ(engine_.status().refused, 3u);
}

TEST_F(EngineThread, ARefusedCommandIsAMessageAndTheRunGoesOn) {
    start(0);
    engine_.send(keyhole::RemoveLane{0});
    ASSERT_TRUE(wait_until_settled());
    const keyhole::EngineStatus status = engine_.status();
    EXPECT_NE(status.message.find("lane 0"), std::string::npos);
    EXPECT_EQ(status.refusal_message, status.message);
    EXPECT_EQ(status.refused, engine_.last_request());
    engine_.step();
    EXPECT_TRUE(wait_for_row(20));
}

TEST_F(EngineThread, AFailedLoadIsOneLineAndTheEngineSurvives) {
    engine_.start(tiny_.folder() / "missing", spec(5));
    ASSERT_TRUE(wait_for_phase(EnginePhase::failed));
    const std::string message = engine_.status().message;
    EXPECT_NE(message.find("missing"), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos);
    keyhole::RunSpec no_lanes = spec(5);
    no_lanes.lanes.clear();
    engine_.start(tiny_.folder(), no_lanes);
    ASSERT_TRUE(wait_for([&] { return engine_.status().message.find("lane") != std::string::npos; }));
    EXPECT_TRUE(wait_for_phase(EnginePhase::failed));
    start(5);
    engine_.play();
    EXPECT_TRUE(wait_for_phase(EnginePhase::finished));
}

// A model or a lane that cannot be used leaves the run as it was, at rest and while it decodes.
TEST_F(EngineThread, ARefusedStartLeavesTheRun) {
    start(12);
    engine_.step(2);
    ASSERT_TRUE(wait_for_row(21));
    keyhole::RunSpec no_lanes = spec(5), wrong_lane = spec(5);
    no_lanes.lanes.clear();
    wrong_lane.lanes.push_back(keyhole::parse_lane_spec("h2o:budget=4,kv=gqa:7"));
    const std::vector<std::pair<std::filesystem::path, keyhole::RunSpec>> refused = {
        {tiny_.folder() / "missing", spec(5)}, {tiny_.folder(), no_lanes}, {tiny_.folder(), wrong_lane}};
    for (const auto& [model, run] : refused) {
        engine_.start(model, run);
        ASSERT_TRUE(wait_until_settled());
        const keyhole::EngineStatus status = engine_.status();
        EXPECT_EQ(status.phase, EnginePhase::idle);
        EXPECT_EQ(status.refused, engine_.last_request());
        EXPECT_EQ(status.refusal_message, status.message);
        EXPECT_FALSE(status.message.empty());
        EXPECT_EQ(status.run.prompt, spec(12).prompt);
        EXPECT_EQ(engine_.model()->path(), tiny_.folder());
        EXPECT_EQ(steps().back()->row, 21);
    }
    engine_.set_speed(200);
    engine_.play();
    engine_.start(tiny_.folder() / "missing", spec(5));
    ASSERT_TRUE(wait_for_phase(EnginePhase::finished));
    EXPECT_EQ(steps().back()->row, 31) << "it went on to its end";
    start(5);
    engine_.play();
    ASSERT_TRUE(wait_until_settled());
    ASSERT_TRUE(wait_for_phase(EnginePhase::finished));
    EXPECT_EQ(steps().back()->row, 24);
}

// A prompt that is stopped gives the run before it back, which goes on where it was.
TEST_F(EngineThread, AStoppedPromptBringsTheRunBeforeItBack) {
    start(5);
    engine_.step(2);
    ASSERT_TRUE(wait_for_row(21));
    ASSERT_TRUE(wait_for_phase(EnginePhase::idle));
    const std::uint64_t first = engine_.status().run_id;
    keyhole::RunSpec run = spec(5);
    run.prompt = random_text(4000, 2);
    engine_.start(tiny_.folder(), run);
    const keyhole::RequestId start_of_it = engine_.last_request();
    engine_.stop(true);
    ASSERT_TRUE(wait_until_settled());
    const keyhole::EngineStatus status = engine_.status();
    EXPECT_NE(status.message.find("was stopped; the run before it is back"), std::string::npos)
        << status.message;
    EXPECT_EQ(status.refused, start_of_it);
    EXPECT_EQ(status.phase, EnginePhase::idle);
    EXPECT_EQ(status.run_id, first);
    EXPECT_EQ(status.run.prompt, spec(5).prompt);
    engine_.step();
    ASSERT_TRUE(wait_for_row(22));
    EXPECT_EQ(steps().back()->run->id, first);
}

// A start that comes while a prompt is processed replaces it, which is no refusal.
TEST_F(EngineThread, AStartReplacesAStartWhosePromptIsProcessed) {
    start(5);
    engine_.step(2);
    ASSERT_TRUE(wait_for_row(21));
    ASSERT_TRUE(wait_for_phase(EnginePhase::idle));
    keyhole::RunSpec slow = spec(5);
    slow.prompt = random_text(4000, 2);
    engine_.start(tiny_.folder(), slow);
    const keyhole::RequestId replaced = engine_.last_request();
    ASSERT_TRUE(wait_for_phase(EnginePhase::prefill));
    engine_.start(tiny_.folder(), spec(5));
    ASSERT_TRUE(wait_until_settled());
    const keyhole::EngineStatus status = engine_.status();
    EXPECT_NE(status.refused, replaced);
    EXPECT_EQ(status.message.find("was stopped"), std::string::npos) << status.message;
    EXPECT_EQ(status.phase, EnginePhase::idle);
    EXPECT_EQ(steps().back()->row, 19) << "of the last start";
}

// A stopped prompt without a run before it leaves nothing to run, and the status says so. The next start
// works and shows nothing of it.
TEST_F(EngineThread, RunAfterACancelledPromptIsRefused) {
    keyhole::RunSpec run = spec(5);
    run.prompt = random_text(4000, 2);
    engine_.start(tiny_.folder(), run);
    engine_.stop(true);
    ASSERT_TRUE(wait_for([&] { return engine_.status().message.find("was stopped") != std::string::npos; }));
    EXPECT_EQ(engine_.status().phase, EnginePhase::idle);
    engine_.step();
    ASSERT_TRUE(wait_for_phase(EnginePhase::failed));
    EXPECT_NE(engine_.status().message.find("start one first"), std::string::npos);
    engine_.start(tiny_.folder(), spec(5));
    ASSERT_TRUE(wait_for_phase(EnginePhase::idle));
    EXPECT_EQ(engine_.status().message, "");
    engine_.play();
    EXPECT_TRUE(wait_for_phase(EnginePhase::finished));
}

TEST_F(EngineThread, ANewStartReplacesTheRunThatPlays) {
    start(0);
    engine_.play();
    ASSERT_TRUE(wait_for_row(30));
    const std::uint64_t first = steps().back()->run->id;
    engine_.start(tiny_.folder(), spec(7));
    ASSERT_TRUE(wait_for([&] {
        const auto all = steps();
        return !all.empty() && all.back()->run->id != first;
    }));
    engine_.play();
    ASSERT_TRUE(wait_for_phase(EnginePhase::finished));
    EXPECT_EQ(steps().front()->row, 19);
    EXPECT_EQ(steps().back()->row, 26);
}

TEST_F(EngineThread, SpeedHoldsRowsBack) {
    start(0);
    engine_.set_speed(50);
    const auto begin = std::chrono::steady_clock::now();
    engine_.play();
    ASSERT_TRUE(wait_for_row(19 + 11));
    EXPECT_GE(std::chrono::steady_clock::now() - begin, 10 * 20ms) << "the first row comes at once";
}

TEST_F(EngineThread, EndsWhilePlaying) {
    start(0);
    engine_.play();
    ASSERT_TRUE(wait_for_row(25));
}  // the destructor stops and joins

// A window that reads, sends commands and updates its history while the engine decodes.
TEST_F(EngineThread, ReadersAndCommandsRaceWithDecoding) {
    start(0);
    engine_.play();
    keyhole::RunHistory history;
    std::uint64_t seen = 0;
    std::vector<float> row(4096);
    for (int i = 0; i < 200 && (steps().back()->row < 300); ++i) {
        if (i % 10 == 0)
            engine_.send(
                keyhole::parse_command(i % 20 == 0 ? "lane 1 h2o:budget=12" : "lane 1 keyformer:budget=5"));
        if (engine_.recorder().version() != seen) {
            const auto snapshot = engine_.recorder().snapshot();
            seen = snapshot.version;
            history.update(snapshot.steps);
            EXPECT_EQ(history.last_row(), snapshot.steps.back()->row);
            history.attention_row(1, history.last_row(), 0, 0, row);
        }
        engine_.status();
        std::this_thread::sleep_for(1ms);
    }
    engine_.stop();
    EXPECT_TRUE(wait_for_phase(EnginePhase::idle));
}

TEST(CommandQueueThreads, KeepsTheOrderOfEachSender) {
    keyhole::CommandQueue queue;
    std::vector<std::jthread> senders;
    for (int sender = 0; sender < 3; ++sender)
        senders.emplace_back([&queue, sender] {
            for (int i = 0; i < 300; ++i) queue.push(keyhole::StepRows{sender * 1000 + i});
        });
    std::vector<int> next = {0, 0, 0};
    for (int n = 0; n < 900; ++n) {
        queue.wait();
        const auto queued = queue.pop();
        ASSERT_TRUE(queued.has_value());
        EXPECT_EQ(queued->id, static_cast<keyhole::RequestId>(n + 1));
        const int value = std::get<keyhole::StepRows>(queued->request).n_rows;
        EXPECT_EQ(value % 1000, next[keyhole::to_index(value / 1000)]++);
    }
    EXPECT_FALSE(queue.pop().has_value());
}

TEST(CommandQueueThreads, WaitingEndsAtItsTime) {
    keyhole::CommandQueue queue;
    const auto begin = std::chrono::steady_clock::now();
    queue.wait_until(begin + 20ms);
    EXPECT_GE(std::chrono::steady_clock::now(), begin + 20ms);
    queue.push(keyhole::Stop{});
    EXPECT_FALSE(queue.stops_work());
    queue.push(keyhole::Stop{true});
    EXPECT_TRUE(queue.stops_work());
    while (queue.pop()) continue;
    queue.push(keyhole::StartRun{});
    EXPECT_TRUE(queue.stops_work());
}

TEST(RecorderThreads, SnapshotsAreWholeWhileRecordsArrive) {
    keyhole::Recorder recorder(1 << 14);
    const auto run = std::make_shared<keyhole::RunInfo>();
    std::atomic<bool> done = false;
    std::jthread writer([&] {
        for (int row = 0; row < 2000; ++row) {
            auto step = std::make_shared<keyhole::StepTrace>();
            step->run = run;
            step->row = row;
            auto block = std::make_shared<keyhole::RowBlock>();
            block->attention.resize(100);
            step->lanes.emplace_back().rows = block;
            recorder.push(step);
        }
        done = true;
    });
    while (!done) {
        const auto snapshot = recorder.snapshot();
        for (std::size_t i = 0; i < snapshot.steps.size(); ++i)
            ASSERT_EQ(snapshot.steps[i]->row, static_cast<int>(i));
        ASSERT_LE(snapshot.row_bytes, snapshot.budget_bytes + 1000);
    }
    EXPECT_EQ(recorder.snapshot().steps.size(), 2000u);
}

}  // namespace
}  // namespace reference::test_engine
