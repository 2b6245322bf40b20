// The answers that lanes give by themselves: computed beside a run, and equal to what a run without `follow`
// says. Also where an answer ends, and what a prompt's file knows about it.
#include "engine/base/error.h"
#include "engine/device/make_backend.h"
#include "engine/live/engine.h"
#include "engine/run/prompt_file.h"
#include "engine/session/run_answers.h"
#include "tests/reference/session_run.h"
#include "tests/reference/source_folder.h"
#include "tests/reference/temp_folder.h"
#include "tests/reference/tiny_model.h"
#include "tests/reference/wakes.h"

#include <gtest/gtest.h>

#include <chrono>
#include <fstream>

namespace reference::test_own_answers {
namespace {

using keyhole::AnswerEnd;
using keyhole::LaneAnswer;
using keyhole::parse_command;
using namespace std::chrono_literals;

constexpr int kPrompt = 24, kAnswer = 9;

class OwnAnswers : public ::testing::Test {
  protected:
    OwnAnswers()
        : tiny_({.n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .head_dim = 8, .n_ctx = 4096, .seed = 11}),
          model_(keyhole::load_model(tiny_.folder())) {
        std::string notice;
        backend_ = keyhole::make_backend(model_, {keyhole::BackendChoice::cpu, 1, 0}, &notice);
    }
    static keyhole::RunSpec spec(const std::vector<std::string>& lanes, bool follow) {
        keyhole::RunSpec run = run_spec(random_text(kPrompt - 1, 3), lanes, 0);
        run.ignore_eos = true;
        run.follow = follow;
        run.answer_end = AnswerEnd{{}, kAnswer};
        return run;
    }
    keyhole::Session session(const std::vector<std::string>& lanes, bool follow = true,
                             std::size_t checkpoint_bytes = std::size_t{1} << 24) const {
        return keyhole::Session(model_, *backend_, spec(lanes, follow), nullptr, checkpoint_bytes);
    }
    /// Returns what each lane consumes in a run of its own.
    std::vector<std::vector<int>> free_run(const std::vector<std::string>& lanes,
                                           const std::vector<std::string>& commands = {}) const {
        keyhole::Session free = session(lanes, false);
        free.prefill();
        for (const std::string& command : commands) free.apply(parse_command(command));
        std::vector<std::vector<int>> tokens(lanes.size());
        for (int i = 0; i < kAnswer; ++i) {
            const auto step = free.step();
            for (std::size_t lane = 0; lane < lanes.size(); ++lane)
                tokens[lane].push_back(step->lanes[lane].token);
        }
        return tokens;
    }
    static std::vector<std::vector<int>> answers_of(keyhole::Session& session) {
        while (session.extend_answers()) {
        }
        std::vector<std::vector<int>> tokens;
        for (const LaneAnswer& answer : session.answers()) {
            EXPECT_TRUE(answer.complete);
            tokens.push_back(answer.tokens);
        }
        return tokens;
    }

    const std::vector<std::string> lanes_ = {"full", "h2o:budget=6", "tova:budget=5", "window:budget=4"};
    TinyModel tiny_;
    std::shared_ptr<const keyhole::Model> model_;
    std::unique_ptr<keyhole::Backend> backend_;
};

// What a slider tries while it is dragged: the answer follows, the lane and the log stay as they are.
TEST_F(OwnAnswers, FollowSettingsThatAreTried) {
    const std::vector<std::string> other = {"full", "window:budget=3", "tova:budget=5", "window:budget=4"};
    const auto expected = free_run(lanes_), with_other = free_run(other);
    ASSERT_NE(expected[1], with_other[1]) << "the test needs settings that change the answer";
    keyhole::Session session = this->session(lanes_);
    session.prefill();
    EXPECT_EQ(answers_of(session), expected);
    session.try_settings(1, keyhole::parse_lane_spec(other[1]));
    EXPECT_EQ(answers_of(session), with_other);
    EXPECT_EQ(session.answers()[1].spec, other[1]);
    EXPECT_TRUE(session.log().empty());
    session.try_settings(1, std::nullopt);
    EXPECT_EQ(answers_of(session), expected);
    session.try_settings(1, keyhole::parse_lane_spec(other[1]));
    session.apply(parse_command("lane 2 tova:budget=5"));  // any command ends it
    EXPECT_EQ(answers_of(session), expected);
    EXPECT_THROW(session.try_settings(9, std::nullopt), keyhole::Error);
}

// An oracle knows lane 0's answer ahead. It gives the same as long as it would choose so: what comes behind
// its first other token it cannot know.
TEST_F(OwnAnswers, OfAnOracleAreLaneZerosUpToItsFirstOwnToken) {
    int n_same = 0, n_other = 0;
    for (const std::string budget : {"4", "6", "12", "64"}) {
        SCOPED_TRACE(budget);
        const std::vector<std::string> lanes = {"full", "oracle:budget=" + budget, "h2o:budget=6"};
        keyhole::Session run = session(lanes);
        std::vector<int> own = {run.prefill()->lanes[1].predicted};
        std::vector<int> full;
        for (int i = 0; i < kAnswer; ++i) {
            const auto step = run.step();
            full.push_back(step->lanes[0].token);
            own.push_back(step->lanes[1].predicted);
        }
        own.resize(kAnswer);
        const auto differs = std::mismatch(own.begin(), own.end(), full.begin()).first;
        const bool same = differs == own.end();
        (same ? n_same : n_other) += 1;
        if (!same) own.erase(differs + 1, own.end());
        // With the state after the prompt, and without it.
        for (const std::size_t checkpoints : {std::size_t{1} << 24, std::size_t{0}}) {
            keyhole::Session asked = session(lanes, true, checkpoints);
            asked.prefill();
            const auto answers = answers_of(asked);
            EXPECT_EQ(answers[0], full);
            EXPECT_EQ(answers[1], own);
            EXPECT_EQ(answers[2], free_run({"full", "h2o:budget=6"})[1]);
            EXPECT_EQ(asked.answers()[1].failure, "");
            EXPECT_TRUE(asked.answers()[1].cut);
            // Settings that a slider tries, and lane 0's text once a token is gone.
            asked.try_settings(1, keyhole::parse_lane_spec("oracle:budget=64"));
            EXPECT_EQ(answers_of(asked)[1], full);
            asked.try_settings(1, std::nullopt);
            for (const int position : {3, 7, 11})
                asked.apply(parse_command(fmt::format("evict 0 {}", position)));
            const std::vector<int> other = answers_of(asked)[0];
            EXPECT_NE(other, full);
            asked.try_settings(1, keyhole::parse_lane_spec("oracle:budget=64"));
            EXPECT_NE(answers_of(asked)[1], full) << "it reads the new text of lane 0";
        }
    }
    EXPECT_GT(n_same, 0);
    EXPECT_GT(n_other, 0) << "the test needs an oracle that differs";
    keyhole::RunSpec given = spec({"oracle:budget=6"}, false);
    given.forced = random_tokens(kAnswer, 5);
    given.n_generate = kAnswer;
    keyhole::Session alone(model_, *backend_, given);
    alone.prefill();
    while (alone.extend_answers()) {
    }
    EXPECT_NE(alone.answers()[0].failure.find("knows no answer ahead"), std::string::npos);
}

TEST_F(OwnAnswers, AreWhatALaneSaysInARunOfItsOwn) {
    const auto expected = free_run(lanes_);
    EXPECT_NE(expected[0], expected[1]) << "or the test shows nothing";
    // With the state after the prompt, without it, and after steps that followed lane 0.
    for (const std::size_t checkpoints : {std::size_t{1} << 24, std::size_t{0}}) {
        keyhole::Session follows = session(lanes_, true, checkpoints);
        follows.prefill();
        EXPECT_EQ(follows.answers_need_prompt(), checkpoints == 0);
        EXPECT_EQ(answers_of(follows), expected);
        EXPECT_FALSE(follows.extend_answers()) << "nothing is left to do";
        keyhole::Session later = session(lanes_, true, checkpoints);
        later.prefill();
        for (int i = 0; i < 20; ++i) later.step();
        EXPECT_EQ(answers_of(later), expected);
    }
}

TEST_F(OwnAnswers, OfARunThatNobodyWatchesAreTheSame) {
    std::vector<std::vector<int>> tokens;
    double last = 0;
    const auto watch = [&](double done) {
        EXPECT_GE(done, last);
        last = done;
        return true;
    };
    for (const LaneAnswer& answer :
         keyhole::answers_of_run(model_, *backend_, spec(lanes_, true), 40, {{}, kAnswer}, watch))
        tokens.push_back(answer.tokens);
    EXPECT_EQ(tokens, free_run(lanes_));
    EXPECT_GE(last, 0.5);
    // With commands they are those of the lanes at the end of the run.
    keyhole::RunSpec changed = spec({"full", "h2o:budget=6"}, true);
    changed.commands = {{kPrompt + 2, parse_command("lane 1 window:budget=4")}};
    const auto answers = keyhole::answers_of_run(model_, *backend_, changed, kPrompt + 5, {{}, kAnswer});
    ASSERT_EQ(answers.size(), 2u);
    EXPECT_EQ(answers[1].tokens, free_run({"full", "window:budget=4"})[1]);
    EXPECT_THROW(keyhole::answers_of_run(model_, *backend_, changed, kPrompt + 5, {{}, kAnswer},
                                         [](double) { return false; }),
                 keyhole::Error);
}

TEST_F(OwnAnswers, ChangeNothingInTheRun) {
    keyhole::Session alone = session(lanes_), beside = session(lanes_);
    alone.prefill();
    beside.prefill();
    for (int i = 0; i < 12; ++i) {
        beside.extend_answers();
        const auto a = alone.step(), b = beside.step();
        for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
            EXPECT_EQ(a->lanes[lane].token, b->lanes[lane].token);
            EXPECT_EQ(a->lanes[lane].use.stored_tokens, b->lanes[lane].use.stored_tokens);
            ASSERT_FALSE(a->lanes[lane].top.empty());
            EXPECT_EQ(a->lanes[lane].top[0].log_prob, b->lanes[lane].top[0].log_prob);
        }
    }
    EXPECT_GT(beside.cache_bytes(), 0);
}

/// Lanes that change, join, or lose a token by hand are answered for as they are now.
TEST_F(OwnAnswers, FollowTheLanesSettings) {
    keyhole::Session session = this->session({"full", "h2o:budget=6"});
    session.prefill();
    session.step();
    (void)answers_of(session);
    session.apply(parse_command("lane 1 window:budget=4"));
    session.apply(parse_command("add tova:budget=5"));
    EXPECT_TRUE(session.answers_need_prompt());
    EXPECT_EQ(session.answers().size(), 1u) << "that of lane 0 stays";
    const auto expected = free_run({"full", "window:budget=4", "tova:budget=5"});
    EXPECT_EQ(answers_of(session), expected);

    keyhole::Session touched = this->session({"full", "full"});
    touched.prefill();
    for (const int position : {3, 7, 11}) touched.apply(parse_command(fmt::format("evict 1 {}", position)));
    const auto without = free_run({"full", "full"}, {"evict 1 3", "evict 1 7", "evict 1 11"});
    EXPECT_EQ(answers_of(touched), without);
    EXPECT_NE(without[0], without[1]);
    touched.apply(parse_command("remove 1"));
    EXPECT_EQ(answers_of(touched).size(), 1u);
}

/// After a turn that the user appends, the answers are what the lanes would say from there.
TEST_F(OwnAnswers, OfATurnAreThoseOfTheLanesAtItsEnd) {
    const auto to_the_turns_end = [&](keyhole::Session& run, const std::string& say) {
        run.step();
        const int before = run.next_row();
        run.apply(parse_command(say));
        const auto n = static_cast<int>(model_->tokenizer().encode(say.substr(4), false).size());
        EXPECT_GT(n, 2);
        while (run.next_row() < before + n) run.step();
    };
    // The reference: all lanes read the turn, then each goes its own way.
    const auto apart = [&](const std::string& say) {
        keyhole::Session run = session(lanes_);
        run.prefill();
        to_the_turns_end(run, say);
        run.apply(parse_command("follow off"));
        std::vector<std::vector<int>> tokens(lanes_.size());
        for (int i = 0; i < kAnswer; ++i) {
            const auto step = run.step();
            for (std::size_t lane = 0; lane < lanes_.size(); ++lane)
                tokens[lane].push_back(step->lanes[lane].token);
        }
        return tokens;
    };
    const std::string first = "say one two three", second = "say quite another text";
    const auto to_prompt = free_run(lanes_), to_first = apart(first), to_second = apart(second);
    EXPECT_NE(to_first, to_prompt);
    EXPECT_NE(to_first, to_second);
    EXPECT_NE(to_first[0], to_first[1]) << "or the test shows nothing";

    keyhole::Session session = this->session(lanes_);
    session.prefill();
    EXPECT_EQ(answers_of(session), to_prompt);
    session.step();
    session.apply(parse_command(first));
    session.step();
    EXPECT_EQ(answers_of(session), to_prompt) << "while the turn is read";
    EXPECT_EQ(session.answers_turn(), -1);
    session.apply(parse_command(fmt::format("rewind {}", kPrompt - 1)));
    to_the_turns_end(session, first);
    EXPECT_EQ(session.answers_turn(), session.next_row() - 1);
    session.step();
    session.apply(parse_command("evict 0 3"));
    session.apply(parse_command("lane 1 window:budget=4"));
    EXPECT_FALSE(session.answers_need_prompt());
    EXPECT_EQ(answers_of(session), to_first) << "what comes later changes nothing";
    for (const LaneAnswer& answer : session.answers()) EXPECT_EQ(answer.turn, session.answers_turn());

    session.apply(parse_command("add tova:budget=5"));
    EXPECT_FALSE(session.extend_answers());
    ASSERT_EQ(session.answers().size(), lanes_.size() + 1);
    EXPECT_NE(session.answers().back().failure, "");

    // After a later turn, a rewind to the first one finds its answers again.
    const int n_begun = session.n_turns_begun(), in_answer = session.next_row() - 1;
    session.apply(parse_command("remove 3"));
    to_the_turns_end(session, second);
    EXPECT_EQ(session.n_turns_begun(), n_begun + 1);
    EXPECT_NE(answers_of(session), to_first);
    session.apply(parse_command(fmt::format("rewind {}", in_answer)));
    EXPECT_EQ(answers_of(session), to_first);
    for (const LaneAnswer& answer : session.answers()) EXPECT_EQ(answer.failure, "");

    // Another turn from the same row takes their place; before both it is the prompt's again.
    session.apply(parse_command(fmt::format("rewind {}", kPrompt - 1)));
    EXPECT_EQ(answers_of(session), to_prompt);
    to_the_turns_end(session, second);
    EXPECT_EQ(answers_of(session), to_second);
}

TEST_F(OwnAnswers, CancelledPromptBeginsAgain) {
    keyhole::Session session = this->session({"full"});
    session.prefill();
    session.apply(parse_command("add h2o:budget=6"));
    while (session.answers().empty()) {
        try {
            session.extend_answers([](double) { return false; });
        } catch (const keyhole::Error& error) {
            EXPECT_EQ(error.code(), keyhole::ErrorCode::cancelled);
            break;
        }
    }
    EXPECT_EQ(answers_of(session), free_run({"full", "h2o:budget=6"}));
}

/// A text decoder for the tests: token i is the i-th of these pieces.
const std::vector<std::string> kPieces = {" 4", "8", "2", "1", ".", ".\n", " The", "\n", " end", "1. "};
std::string piece_text(std::span<const int> tokens) {
    std::string text;
    for (const int token : tokens) text += kPieces.at(static_cast<std::size_t>(token));
    return text;
}
LaneAnswer answer(const std::vector<int>& tokens, const std::vector<std::string>& stop) {
    return answer_from(piece_text, tokens, AnswerEnd{stop, 24});
}

TEST(AnswerEnd, IsTheFirstStopText) {
    EXPECT_EQ(answer({0, 1, 2, 3, 4, 6}, {".", "\n"}).text, " 4821");
    EXPECT_EQ(answer({0, 1, 2, 3, 4, 6}, {".", "\n"}).tokens, (std::vector<int>{0, 1, 2, 3}));
    EXPECT_TRUE(answer({0, 1, 2, 3, 5}, {"\n"}).complete);
    EXPECT_EQ(answer({0, 1, 2, 3, 5}, {"\n"}).tokens.size(), 5u) << "this token holds the full stop too";
    EXPECT_EQ(answer({0, 1, 2, 9}, {"."}).text, " 4821") << "the stop is inside a token";
    EXPECT_EQ(answer({0, 1, 2, 9}, {"."}).tokens.size(), 4u);
    EXPECT_FALSE(answer({0, 1, 2, 3}, {"."}).complete);
    EXPECT_FALSE(answer({0, 4, 7}, {}).complete);
    EXPECT_TRUE(answer({7}, {"\n"}).tokens.empty());
}

TEST(AnswerEnd, TheRightAnswerIsAWholeWord) {
    EXPECT_TRUE(keyhole::answer_holds(" 4821", "4821"));
    EXPECT_TRUE(keyhole::answer_holds("It is 4821, he said", "4821"));
    EXPECT_TRUE(keyhole::answer_holds("in the red house by the church", "red house"));
    for (const char* wrong : {"48211", "14821", "482", "4 8 2 1", "", "x4821", "_4821"})
        EXPECT_FALSE(keyhole::answer_holds(wrong, "4821")) << wrong;
    EXPECT_FALSE(keyhole::answer_holds("anything", ""));
    EXPECT_TRUE(keyhole::answer_holds("14821 or 4821", "4821")) << "the second place counts";
}

TEST(PromptFile, KnowsWhatLiesBesideIt) {
    const TempFolder folder("prompt-file");
    const auto write = [&](const std::string& name, const std::string& text) {
        std::ofstream(folder.path() / name) << text;
    };
    write("a.txt", "What is it?\n");
    keyhole::PromptFile file = keyhole::read_prompt_file(folder.path() / "a.txt");
    EXPECT_EQ(file.text, "What is it?");
    EXPECT_EQ(file.guide, keyhole::PromptGuide{});
    write("a.prompt.json", R"({"answer": "a gate", "watch": "it", "stop": [".", "\n"]})");
    file = keyhole::read_prompt_file(folder.path() / "a.txt");
    EXPECT_EQ(file.guide.answer, "a gate");
    EXPECT_EQ(file.guide.watch, "it");
    EXPECT_EQ(file.guide.end.stop, (std::vector<std::string>{".", "\n"}));
    for (const auto& [bad, named] : {std::pair(R"({"anser": "a"})", "'anser' is unknown"),
                                     {R"({"answer": 1})", "'answer' must be a text"},
                                     {R"({"stop": "."})", "'stop' must be a list"},
                                     {R"({"stop": [""]})", "empty text"},
                                     {R"({"stop": [1]})", "'stop' must be a list of texts"},
                                     {"[]", "is not a JSON object"},
                                     {"{", "is not JSON"}}) {
        write("a.prompt.json", bad);
        try {
            keyhole::read_prompt_file(folder.path() / "a.txt");
            ADD_FAILURE() << bad;
        } catch (const keyhole::Error& error) {
            EXPECT_NE(std::string(error.what()).find(named), std::string::npos) << error.what();
            EXPECT_NE(std::string(error.what()).find("a.prompt.json"), std::string::npos) << error.what();
        }
    }
}

/// Every guide of our prompts can be read, and its words are in its prompt.
TEST(PromptFile, TheFileThatDescribesAPromptIsNotTakenForOne) {
    try {
        keyhole::read_prompt_file(source_folder() / "assets/prompts/garden-gate.prompt.json");
        FAIL();
    } catch (const keyhole::Error& error) {
        EXPECT_NE(std::string(error.what()).find("give the text beside it, such as garden-gate.txt"),
                  std::string::npos)
            << error.what();
    }
}

TEST(PromptFile, OurGuidesNameWordsOfTheirPrompts) {
    int n_guides = 0;
    for (const auto& entry : std::filesystem::directory_iterator(source_folder() / "assets/prompts")) {
        if (entry.path().extension() != ".txt" || entry.path().stem() == "README") continue;
        const keyhole::PromptFile file = keyhole::read_prompt_file(entry.path());
        n_guides += file.guide.watch.empty() ? 0 : 1;
        EXPECT_NE(file.text.find(file.guide.watch), std::string::npos) << entry.path();
        EXPECT_NE(file.text.find(file.guide.answer), std::string::npos) << entry.path();
    }
    EXPECT_GE(n_guides, 7);
}

/// On the demo model: H2O's wrong answer is known before the first step, and play() pauses at the answer's
/// end.
TEST(DemoAnswers, AreThereBeforeTheFirstStepAndEndTheRun) {
    Wakes wakes;
    keyhole::Engine engine({keyhole::BackendChoice::cpu, 2, 0}, wakes.callback());
    const keyhole::PromptFile prompt =
        keyhole::read_prompt_file(source_folder() / "assets/prompts/garden-gate.txt");
    keyhole::RunSpec run = run_spec(prompt.text, {"full", "h2o:budget=64", "tova:budget=64"}, 0);
    run.follow = true;
    run.answer_end = prompt.guide.end;
    engine.start(source_folder() / "assets/models/keyhole-base", run);
    const auto answered = [&] {
        const keyhole::EngineStatus now = engine.status();
        return now.handled == engine.last_request() && now.answers != nullptr && !now.answering;
    };
    ASSERT_TRUE(wakes.wait_until(answered, 60s)) << engine.status().message;
    const auto answers = engine.status().answers;
    ASSERT_EQ(answers->size(), 3u);
    EXPECT_TRUE(keyhole::answer_holds((*answers)[0].text, prompt.guide.answer)) << (*answers)[0].text;
    EXPECT_FALSE(keyhole::answer_holds((*answers)[1].text, prompt.guide.answer)) << (*answers)[1].text;
    EXPECT_TRUE(keyhole::answer_holds((*answers)[2].text, prompt.guide.answer)) << (*answers)[2].text;
    EXPECT_EQ(engine.recorder().snapshot().steps.size(), 1u) << "no step was decoded";

    engine.play();
    ASSERT_TRUE(wakes.wait_until(
        [&] {
            return engine.status().phase == keyhole::EnginePhase::idle &&
                   engine.recorder().snapshot().steps.size() > 1;
        },
        60s));
    EXPECT_NE(engine.status().message.find("answer is complete"), std::string::npos);
    const auto steps = engine.recorder().snapshot().steps;
    EXPECT_EQ(steps.size(), 1 + (*answers)[0].tokens.size() + 1) << "the full stop is consumed too";
    engine.play();
    const std::size_t n = steps.size();
    ASSERT_TRUE(wakes.wait_until([&] { return engine.recorder().snapshot().steps.size() > n + 5; }, 60s))
        << "it pauses once";
    engine.stop();

    // A turn that is appended has answers of its own, and the run ends at lane 0's.
    engine.send(parse_command("say Who has two of them?\n"));
    engine.play();
    ASSERT_TRUE(wakes.wait_until(
        [&] {
            const auto now = engine.status().answers;
            return now != nullptr && !now->empty() && now->front().turn >= 0 && !engine.status().answering &&
                   engine.status().phase == keyhole::EnginePhase::idle;
        },
        60s))
        << engine.status().message;
    EXPECT_NE(engine.status().message.find("answer is complete"), std::string::npos);
    const auto of_turn = engine.status().answers;
    ASSERT_EQ(of_turn->size(), 3u);
    EXPECT_NE((*of_turn)[0].text, (*answers)[0].text);
    const auto rows = engine.recorder().snapshot().steps;
    std::vector<int> said;
    for (const auto& step : rows)
        if (step->row > (*of_turn)[0].turn) said.push_back(step->lanes[0].token);
    ASSERT_GE(said.size(), (*of_turn)[0].tokens.size());
    EXPECT_TRUE(std::equal((*of_turn)[0].tokens.begin(), (*of_turn)[0].tokens.end(), said.begin()))
        << "lane 0 says in the run what it answers by itself";

    // A text of the same length from the same row is another turn, after a rewind into the first one.
    const int turn = (*of_turn)[0].turn;
    engine.send(parse_command(fmt::format("rewind {}", turn - 2)));
    engine.send(parse_command("lane 1 full"));
    engine.step(6);
    ASSERT_TRUE(wakes.wait_until(
        [&] {
            return answered() && engine.status().phase == keyhole::EnginePhase::idle &&
                   engine.recorder().snapshot().steps.back()->row > turn;
        },
        60s));
    const auto anew = engine.status().answers;
    ASSERT_EQ(anew->size(), 3u);
    EXPECT_EQ((*anew)[0].tokens, (*of_turn)[0].tokens);
    EXPECT_EQ((*of_turn)[1].spec, "h2o:budget=64");
    EXPECT_EQ((*anew)[1].spec, "full") << "not the answer of before";
}

}  // namespace
}  // namespace reference::test_own_answers
