// Tokens that a user forces on the lanes: the next rows of all lanes consume them; they are logged, replayed
// and rewound.
#include "engine/device/make_backend.h"
#include "engine/export/run_json.h"
#include "engine/trace/trace_file.h"
#include "tests/reference/session_run.h"
#include "tests/reference/tiny_model.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <unistd.h>

#include <filesystem>
#include <map>

namespace reference::test_force {
namespace {

using keyhole::parse_command;

constexpr int kPrompt = 24;

class SessionForce : public ::testing::Test {
  protected:
    SessionForce()
        : tiny_({.n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .head_dim = 8, .seed = 11}),
          model_(keyhole::load_model(tiny_.folder())) {}

    keyhole::RunSpec spec(bool follow) const {
        keyhole::RunSpec spec = run_spec(random_text(kPrompt - 1, 3), {"full", "h2o:budget=10"}, 16);
        spec.ignore_eos = true;
        spec.follow = follow;
        return spec;
    }
    SessionRun run(const keyhole::RunSpec& spec, const std::map<int, std::string>& script) const {
        return run_session(model_, spec, [&](keyhole::Session& session, int row) {
            if (const auto at = script.find(row); at != script.end())
                session.apply(parse_command(at->second));
        });
    }

    TinyModel tiny_;
    std::shared_ptr<const keyhole::Model> model_;
};

TEST_F(SessionForce, NextRowsConsumeTheTokensInAllLanes) {
    for (const bool follow : {true, false}) {
        const SessionRun plain = run(spec(follow), {});
        const std::vector<int> wanted = {(plain.tokens(0)[3] + 1) % 90, 7, 8};
        const SessionRun forced = run(
            spec(follow), {{kPrompt + 3, fmt::format("force {},{},{}", wanted[0], wanted[1], wanted[2])}});
        for (std::size_t lane : {0u, 1u}) {
            const std::vector<int> tokens = forced.tokens(lane), before = plain.tokens(lane);
            ASSERT_EQ(tokens.size(), 16u);
            for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(tokens[i], before[i]);
            for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(tokens[3 + i], wanted[i]);
            // then their own predictions again
            EXPECT_EQ(tokens[6], forced.lane(6, follow ? 0 : lane).predicted);
            // A forced token is not the lane's choice: the record keeps the lane's own prediction and the
            // forced token's log-probability.
            EXPECT_EQ(forced.lane(3, lane).predicted, plain.lane(3, lane).predicted);
            EXPECT_LT(forced.lane(4, lane).log_prob, 0);
        }
        EXPECT_EQ(forced.as_run.commands.size(), 1u);
        EXPECT_EQ(forced.steps[4]->commands,
                  std::vector<std::string>{fmt::format("force {}", fmt::join(wanted, ","))});
    }
}

TEST_F(SessionForce, ReplaysToTheBitAndAppliesToAddedLanes) {
    std::map<int, std::string> script = {
        {kPrompt + 2, "force 5,6,7,8"}, {kPrompt + 4, "add tova:budget=9"}, {kPrompt + 8, "say \"abc\""}};
    const SessionRun live = run(spec(false), script);
    std::string notice;
    const auto backend = keyhole::make_backend(model_, {keyhole::BackendChoice::cpu, 1, 0}, &notice);
    KeepRows again;
    keyhole::replay(model_, *backend, live.as_run, 1000, &again, [](const auto&) {});
    EXPECT_EQ(again.rows, live.sink.rows);
    const std::vector<int> said = model_->tokenizer().encode("abc", false), tokens = live.tokens(0);
    ASSERT_FALSE(said.empty());
    for (std::size_t i = 0; i < said.size(); ++i) EXPECT_EQ(tokens.at(8 + i), said[i]);
}

TEST_F(SessionForce, RewindingForgetsWhatWasToCome) {
    std::string notice;
    for (const std::size_t checkpoints : {std::size_t{0}, std::size_t{64} << 20}) {
        const auto backend = keyhole::make_backend(model_, {keyhole::BackendChoice::cpu, 1, 0}, &notice);
        keyhole::Session bent(model_, *backend, spec(true), nullptr, checkpoints);
        bent.prefill();
        for (int i = 0; i < 4; ++i) bent.step();
        bent.apply(parse_command("force 5,6,7,8,9"));
        bent.step();
        bent.apply(parse_command(fmt::format("rewind {}", kPrompt + 1)));
        const SessionRun straight = run(spec(true), {});
        for (std::size_t i = 3; i < straight.steps.size(); ++i) {
            const auto step = bent.step();
            ASSERT_NE(step, nullptr);
            for (std::size_t lane : {0u, 1u}) {
                EXPECT_EQ(step->lanes[lane].token, straight.lane(i, lane).token) << i;
                EXPECT_EQ(step->lanes[lane].entropy, straight.lane(i, lane).entropy) << i;
            }
        }
        // At the end of the branch the token is forced again, and so are those still pending.
        bent.apply(parse_command(fmt::format("branch {}", bent.other_branches().front().id)));
        while (bent.catching_up()) bent.step();
        EXPECT_EQ(bent.step()->lanes[0].token, 6);
    }
}

TEST_F(SessionForce, TakesUpATextThatEnded) {
    keyhole::RunSpec asked = spec(true);
    asked.ignore_eos = false;
    asked.n_generate = 0;
    std::string notice;
    const auto backend = keyhole::make_backend(model_, {keyhole::BackendChoice::cpu, 1, 0}, &notice);
    keyhole::Session session(model_, *backend, asked, nullptr, 0);
    session.prefill();
    if (model_->config().eos.empty()) GTEST_SKIP() << "the tiny model has no end of text";
    const int eos = model_->config().eos.front();
    session.apply(parse_command(fmt::format("force {}", eos)));
    session.step();
    EXPECT_TRUE(session.finished());
    const std::int64_t stored = session.next_row();
    session.apply(parse_command("force 5,6"));
    EXPECT_FALSE(session.finished());
    const auto step = session.step();
    EXPECT_EQ(step->lanes[0].token, 5);
    EXPECT_EQ(step->row, stored);
    EXPECT_EQ(step->lanes[0].use.stored_tokens, step->lanes[0].attended_tokens);  // full: the cache was kept
}

/// The records of a run with given tokens, such as a question, say so: a replay from the records alone is
/// equal.
TEST_F(SessionForce, RecordsKeepWhatTheRunWasGiven) {
    keyhole::RunSpec given = spec(false);
    given.prompt.clear();
    given.prompt_tokens = random_tokens(kPrompt, 9);
    given.forced = {5, 6, 7, 8};
    const SessionRun first = run(given, {{kPrompt + 2, "force 9"}});
    for (std::size_t i = 0; i < given.forced.size(); ++i)
        EXPECT_EQ(first.lane(i + 1, 1).token, given.forced[i]);
    const auto path =
        std::filesystem::temp_directory_path() / ("keyhole-given-" + std::to_string(getpid()) + ".keyhole");
    keyhole::write_trace(first.steps, path);
    const keyhole::StepList read = keyhole::read_trace(path);
    std::filesystem::remove(path);
    EXPECT_EQ(read.front()->run->start.forced, given.forced);
    EXPECT_TRUE(read.front()->run->start.tokens_given);
    keyhole::RunHistory history;
    history.update(read);
    const keyhole::RunSpec again = keyhole::run_spec_of(*read.front()->run, keyhole::commands_of(history));
    EXPECT_EQ(again.prompt_tokens, given.prompt_tokens);
    EXPECT_EQ(again.forced, given.forced);
    std::string notice;
    const auto backend = keyhole::make_backend(model_, {keyhole::BackendChoice::cpu, 2, 0}, &notice);
    KeepRows rows;
    keyhole::replay(model_, *backend, again, kPrompt + 100, &rows, [](const auto&) {});
    EXPECT_EQ(rows.rows, first.sink.rows);
    const auto json = nlohmann::json::parse(keyhole::make_run_json(history, 0));
    EXPECT_EQ(json["start"]["forced"], nlohmann::json(given.forced));
    EXPECT_EQ(json["start"]["tokens_given"], true);
    EXPECT_EQ(json["prompt_tokens"], nlohmann::json(given.prompt_tokens));
    // A text determines its tokens. The record keeps none, so that a later edit of the text is not
    // overridden.
    const SessionRun plain = run(spec(false), {});
    EXPECT_FALSE(plain.steps[0]->run->start.tokens_given);
    EXPECT_TRUE(keyhole::run_spec_of(*plain.steps[0]->run, {}).prompt_tokens.empty());
}

TEST_F(SessionForce, RefusesTokensThatDoNotExist) {
    std::string notice;
    const auto backend = keyhole::make_backend(model_, {keyhole::BackendChoice::cpu, 1, 0}, &notice);
    keyhole::Session session(model_, *backend, spec(true), nullptr, 0);
    session.prefill();
    const std::string fault =
        error_of([&] { session.apply(parse_command("force 999999")); }, keyhole::ErrorCode::wrong_use);
    EXPECT_NE(fault.find("999999"), std::string::npos) << fault;
    EXPECT_TRUE(session.log().empty());
    keyhole::RunSpec asked = spec(true);
    asked.forced = {5, 999999};
    EXPECT_NE(error_of([&] { keyhole::Session(model_, *backend, asked); }, keyhole::ErrorCode::wrong_use)
                  .find("no token 999999 to force"),
              std::string::npos);
}

}  // namespace
}  // namespace reference::test_force
