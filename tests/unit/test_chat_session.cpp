// A conversation with a model: the prompt and what is said later are turns in the form of its chat template.
#include "engine/analysis/doctor.h"
#include "engine/device/make_backend.h"
#include "engine/export/run_json.h"
#include "engine/model/chat_template.h"
#include "engine/run/prompt.h"
#include "engine/trace/trace_file.h"
#include "tests/reference/session_run.h"
#include "tests/reference/source_folder.h"
#include "tests/reference/tiny_model.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

namespace reference::test_chat_session {
namespace {

using namespace keyhole;

/// The demo model with a chat template of its own.
class ChatSession : public ::testing::Test {
  protected:
    void SetUp() override {
        folder_ = std::filesystem::temp_directory_path() / ("keyhole-chat-" + std::to_string(getpid()));
        std::filesystem::create_directories(folder_);
        for (const char* name : {"config.json", "model.safetensors", "tokenizer.json"})
            std::filesystem::create_symlink(source_folder() / "assets/models/keyhole-base" / name,
                                            folder_ / name);
    }
    void TearDown() override { std::filesystem::remove_all(folder_); }

    std::shared_ptr<const Model> model_with(const nlohmann::json& chat_template) {
        std::ofstream(folder_ / "tokenizer_config.json")
            << nlohmann::json{{"chat_template", chat_template}, {"bos_token", "<|endoftext|>"}}.dump();
        return load_model(folder_);
    }
    static std::string text_of(const Model& model, const std::vector<int>& tokens) {
        return model.tokenizer().decode(tokens, true);
    }

    const std::string zephyr_ =
        "{% for m in messages %}{{ '<|' + m.role + '|>\\n' + m.content + '</s>\\n' }}{% endfor %}"
        "{{ '<|assistant|>\\n' }}";
    std::filesystem::path folder_;
};

TEST_F(ChatSession, PromptAndSayAreTurns) {
    const auto model = model_with(zephyr_);
    RunSpec spec = run_spec("Who is there?", {"full", "h2o:budget=8"}, 60);
    spec.ignore_eos = spec.chat = spec.follow = true;
    int n_prompt = 0;
    const SessionRun run = run_session(model, spec, [&](Session& session, int row) {
        n_prompt = static_cast<int>(session.run().prompt_tokens.size());
        if (row == n_prompt + 2) session.apply(parse_command("say \"And now?\""));
    });
    const std::string first = "<|user|>\nWho is there?</s>\n<|assistant|>\n";
    EXPECT_EQ(text_of(*model, prompt_tokens(*model, "Who is there?", true)), "<|endoftext|>" + first)
        << "the tokenizer adds BOS";
    EXPECT_EQ(n_prompt, static_cast<int>(model->tokenizer().encode(first).size()));
    const std::string said = text_of(*model, run.tokens(0));
    const std::string turn = "</s>\n<|user|>\nAnd now?</s>\n<|assistant|>\n";
    const std::size_t at = said.find(turn);
    ASSERT_NE(at, std::string::npos) << said;
    EXPECT_LT(at, 30u) << "after a few tokens of the answer";
    EXPECT_EQ(said.find(turn, at + 1), std::string::npos);
}

// What the template writes before the user's words never competes; the record names its positions.
TEST_F(ChatSession, TheSystemPartIsProtected) {
    const auto model = model_with(zephyr_);
    RunSpec spec = run_spec("Who is there? I hear steps in the garden, and a key turns in the gate.",
                            {"full", "key:budget=20,protect=system"}, 8);
    spec.ignore_eos = spec.chat = spec.follow = true;
    const std::string opening = "<|endoftext|><|user|>\n";
    int n = 0;
    const SessionRun run = run_session(model, spec, [&](Session& session, int row) {
        const std::vector<int>& tokens = session.run().prompt_tokens;
        if (n > 0 || row < static_cast<int>(tokens.size())) return;
        while (text_of(*model, {tokens.begin(), tokens.begin() + n}).size() < opening.size()) ++n;
        session.apply(parse_command("lane 1 key:budget=18,protect=system"));
        // The log has what the lane has, so that a removed lane is found again, whatever names it.
        const std::string put = fmt::format("key:budget=18,protect=0..{}", n - 1);
        const auto* logged = std::get_if<SetLane>(&session.log().back().command);
        ASSERT_NE(logged, nullptr);
        EXPECT_EQ(format_lane_spec(logged->spec), format_lane_spec(parse_lane_spec(put)));
        EXPECT_NO_THROW(session.try_settings(1, parse_lane_spec("key:budget=16,protect=system")));
        session.apply(parse_command("remove 1"));
        session.apply(parse_command("restore 1 key:budget=18,protect=system"));
        session.apply(parse_command("remove 1"));
        session.apply(RestoreLane{1, parse_lane_spec(put)});
    });
    ASSERT_GT(n, 2);
    const RunHistory history = history_of(run);
    int evicted = 0;
    for (int p = 0; p < history.n_prompt(); ++p) {
        const bool stays = history.evicted_at(1, 0, p) < 0;
        EXPECT_TRUE(stays || p >= n) << "token " << p << " of the system part left";
        evicted += stays ? 0 : 1;
    }
    EXPECT_GT(evicted, 4);
}

// `spans=fair` alone: the system part and the rest have shares of the budget by their lengths.
TEST_F(ChatSession, TheSystemPartHasItsShare) {
    const auto model = model_with(zephyr_);
    RunSpec spec = run_spec("Who is there? I hear steps in the garden, and a key turns in the gate.",
                            {"full", "h2o:budget=20,spans=fair", "key:budget=18,protect=system"}, 8);
    spec.ignore_eos = spec.chat = spec.follow = true;
    const RunHistory history = history_of(run_session(model, spec));
    const int n = history.n_prompt();
    const auto& fair = history.lane_record(n - 1, 1)->info->policy.fair;
    int n_system = 0;
    while (history.evicted_at(2, 0, n_system) < 0 && n_system < n) ++n_system;
    ASSERT_EQ(fair.size(), 2u);
    EXPECT_EQ(fair[0].name, "system");
    EXPECT_EQ(fair[0].last + 1, fair[1].first);
    EXPECT_LE(fair[1].first, n_system) << "as protect=system has it";
    EXPECT_GT(fair[1].first, 2);
    int n_left = 0, n_checked = 0;
    for (int p = 0; p < fair[1].first; ++p) n_left += history.evicted_at(1, 0, p) < 0 ? 1 : 0;
    EXPECT_NEAR(n_left, 20.0 * fair[1].first / history.last_row(), 1.01);
    for (int row = n - 1; row <= history.last_row(); ++row)
        for (const Finding& finding : examine(history, 1, row)) {
            if (finding.name == "attention sums to 1") continue;
            EXPECT_NE(finding.state, Finding::State::broken) << finding.name << ": " << finding.detail;
            n_checked += finding.name == "each span keeps its share" && finding.state == Finding::State::good;
        }
    EXPECT_GT(n_checked, 4);
}

// Forced end tokens stand for ends of answers. The first `say_after` is said at the first end, the other at
// the next; a third end ends the text.
TEST_F(ChatSession, SayAfterWaitsForTheEndOfAnAnswer) {
    const auto model = model_with(zephyr_);
    RunSpec spec = run_spec("Who is there?", {"full", "h2o:budget=8"}, 150);
    spec.chat = spec.follow = true;
    const std::string end = fmt::format("force {}", model->config().eos.front());
    const auto turn = [&](const std::string& words) {
        return "\n<|user|>\n" + words + "</s>\n<|assistant|>\n";
    };
    const auto n_tokens = [&](const std::string& text) {
        return static_cast<int>(model->tokenizer().encode(text, false).size());
    };
    const std::string eos = text_of(*model, model->config().eos);
    // The template's own end token is another one here, so that a turn begins with it.
    const int first = 40, second = first + 1 + n_tokens("</s>" + turn("And now?")) + 4,
              third = second + 1 + n_tokens("</s>" + turn("Again?")) + 5;
    const std::vector<std::pair<int, std::string>> commands = {{0, "say_after \"And now?\""},
                                                               {0, "say_after \"Again?\""},
                                                               {first, end},
                                                               {second, end},
                                                               {third, end}};
    const SessionRun run = run_session(model, spec, commands);
    const std::string said = text_of(*model, run.tokens(0));
    const std::size_t one = said.find(eos + "</s>" + turn("And now?")),
                      two = said.find(eos + "</s>" + turn("Again?"));
    ASSERT_NE(one, std::string::npos) << said;
    ASSERT_NE(two, std::string::npos) << said;
    EXPECT_LT(one, two);
    EXPECT_EQ(static_cast<int>(run.tokens(0).size()), third + 1) << said;
    EXPECT_EQ(run.tokens(0), run.tokens(1));
    EXPECT_EQ(run.finish_reason, "the reference lane ended its text");

    // A rewind into the answer brings back the text that waits.
    const auto backend = make_backend(model, {BackendChoice::cpu, 1, 0}, nullptr);
    Session session(model, *backend, spec, nullptr, std::size_t{64} << 20);  // with copies of the state
    session.prefill();
    std::map<int, int> bent, straight;
    bool turned = false;
    for (int done = 0;; done = session.next_row() - session.run().n_prompt()) {
        for (const auto& [at, text] : commands)
            if (at == done && !(turned && at < first)) session.apply(parse_command(text));
        if (done == first + 6 && !turned) {
            turned = true;
            session.apply(Rewind{session.run().n_prompt() - 1 + first});
            continue;
        }
        const auto step = session.step();
        if (step == nullptr) break;
        bent[step->row] = step->lanes[0].token;
    }
    EXPECT_TRUE(turned);
    for (std::size_t i = 1; i < run.steps.size(); ++i) straight[run.steps[i]->row] = run.lane(i, 0).token;
    EXPECT_EQ(bent, straight);
    EXPECT_EQ(session.run_spec().commands, run.as_run.commands);
}

/// Returns where a sequence of tokens stands in others, from `from` on; -1: nowhere.
int find_tokens(const std::vector<int>& in, const std::vector<int>& what, int from = 0) {
    const auto at = std::search(in.begin() + from, in.end(), what.begin(), what.end());
    return at == in.end() ? -1 : static_cast<int>(at - in.begin());
}

// Lanes with texts of their own end their answers at different rows. Each turn follows one end token in each
// lane, which the lane chose or which is written for it. A turn comes at the lane's own end, or where lane 0
// hears it.
TEST_F(ChatSession, EveryLaneEndsItsOwnAnswers) {
    TinyModel tiny({.n_ctx = 2048, .seed = 21});
    scale_rows(tiny.folder(), "lm_head.weight", 2, kEos, 1);  // answers then end now and then
    std::ofstream(tiny.folder() / "tokenizer_config.json")
        << nlohmann::json{{"chat_template", zephyr_}, {"eos_token", "</s>"}}.dump();
    const auto model = load_model(tiny.folder());
    int n_cut = 0, n_own = 0, n_early = 0;
    for (std::uint64_t seed = 1; seed <= 8; ++seed) {
        RunSpec spec = run_spec("one two", {"full", "window:budget=40", "h2o:budget=30"}, 700);
        spec.chat = true;
        spec.seed = seed;
        spec.sampling.temperature = 0.7;
        const std::vector<std::string> words = {"and", "now", "then"};
        std::vector<std::pair<int, std::string>> commands;
        for (const std::string& word : words) commands.push_back({0, "say_after \"" + word + "\""});
        commands.push_back({9, "fork 1 tova:budget=20"});
        const SessionRun run = run_session(model, spec, commands);
        std::vector<int> heard_by_first;
        for (std::size_t lane = 0; lane < 4; ++lane) {
            std::vector<int> tokens;
            for (std::size_t i = 1; i < run.steps.size(); ++i)
                if (run.steps[i]->lanes.size() > lane && run.lane(i, lane).attended_tokens > 0)
                    tokens.push_back(run.lane(i, lane).token);
            int from = 0;
            for (std::size_t turn = 0; turn < words.size(); ++turn) {
                const std::vector<int> said =
                    model->tokenizer().encode("\n<|user|>\n" + words[turn] + "</s>\n<|assistant|>\n", false);
                const int at = find_tokens(tokens, said, from);
                if (at < 0) {
                    if (lane == 0) heard_by_first.push_back(1 << 20);
                    break;
                }
                ASSERT_GT(at, 0);
                EXPECT_EQ(tokens[to_index(at - 1)], kEos) << "before turn " << turn << " of lane " << lane;
                EXPECT_TRUE(at == 1 || tokens[to_index(at - 2)] != kEos) << "twice, lane " << lane;
                // An end that the lane did not choose was written for it.
                const bool chosen =
                    lane < 3 && run.lane(to_index(at - 1), lane).predicted == kEos;  // the fork joined later
                if (lane == 0) {
                    heard_by_first.push_back(at);
                    EXPECT_TRUE(chosen);
                } else if (lane < 3) {
                    (chosen ? n_own : n_cut) += 1;
                    n_early += at < heard_by_first[turn] ? 1 : 0;
                    if (!chosen) {
                        EXPECT_EQ(at - 1, heard_by_first[turn]) << "cut off when lane 0 has ended";
                    }
                }
                from = at + static_cast<int>(said.size());
            }
        }
        // A replay gives the same bits, and so does a way over a rewind.
        const auto backend = make_backend(model, {BackendChoice::cpu, 1, 0}, nullptr);
        std::map<int, std::vector<int>> bent, straight;
        const auto keep = [](std::map<int, std::vector<int>>& to, const StepTrace& step) {
            std::vector<int>& row = to[step.row];
            row.clear();
            for (const LaneRecord& record : step.lanes) row.push_back(record.token);
        };
        for (const auto& step : run.steps) keep(straight, *step);
        Session session(model, *backend, run.as_run, nullptr, std::size_t{64} << 20);
        keep(bent, *session.prefill());
        auto next = run.as_run.commands.begin();
        bool turned = false;
        for (;;) {
            for (; next != run.as_run.commands.end() && next->row < session.next_row(); ++next)
                if (!turned || next->row + 1 == session.next_row()) session.apply(next->command);
            if (session.next_row() == session.run().n_prompt() + 60 && !turned) {
                turned = true;
                session.apply(Rewind{session.run().n_prompt() + 30});
            }
            const auto step = session.step();
            if (step == nullptr) break;
            keep(bent, *step);
        }
        EXPECT_EQ(bent, straight) << seed;
    }
    // The cases that this is about have come.
    EXPECT_GT(n_cut, 0);
    EXPECT_GT(n_own, 0);
    EXPECT_GT(n_early, 0);
}

// A turn that is said when lane 0 has just ended its answer, while others are in the middle of theirs.
TEST_F(ChatSession, SayLooksAtEachLanesOwnLastToken) {
    TinyModel tiny({.n_ctx = 2048, .seed = 21});
    scale_rows(tiny.folder(), "lm_head.weight", 2, kEos, 1);
    std::ofstream(tiny.folder() / "tokenizer_config.json")
        << nlohmann::json{{"chat_template", zephyr_}, {"eos_token", "</s>"}}.dump();
    const auto model = load_model(tiny.folder());
    RunSpec spec = run_spec("one two", {"full", "window:budget=40", "h2o:budget=30"}, 400);
    spec.chat = true;
    spec.sampling.temperature = 0.7;
    const auto backend = make_backend(model, {BackendChoice::cpu, 1, 0}, nullptr);
    Session session(model, *backend, spec);
    session.prefill();
    std::vector<std::vector<int>> tokens(3);
    bool said = false;
    int n_cut = 0;
    while (const auto step = session.step()) {
        for (std::size_t lane = 0; lane < 3; ++lane)
            if (step->lanes[lane].attended_tokens > 0) tokens[lane].push_back(step->lanes[lane].token);
        if (said || tokens[0].back() != kEos) continue;
        said = true;
        for (const std::size_t lane : {1u, 2u}) n_cut += tokens[lane].back() != kEos ? 1 : 0;
        session.apply(parse_command("say \"and\""));
    }
    ASSERT_GT(n_cut, 0) << "another seed is needed";
    const std::vector<int> turn = model->tokenizer().encode("\n<|user|>\nand</s>\n<|assistant|>\n", false);
    int n_said = 0;
    for (const std::vector<int>& of_lane : tokens) {
        const int at = find_tokens(of_lane, turn);
        if (at < 0) continue;  // it ended before
        ++n_said;
        EXPECT_EQ(of_lane[to_index(at - 1)], kEos);
        EXPECT_NE(of_lane[to_index(at - 2)], kEos);
    }
    EXPECT_GE(n_said, 1 + n_cut);
}

// A turn at a given step cuts off the lanes that are still answering, and they alone.
TEST_F(ChatSession, SayWritesTheEndForLanesThatAreStillAnswering) {
    const TinyModel tiny({.seed = 21});
    std::ofstream(tiny.folder() / "tokenizer_config.json")
        << nlohmann::json{{"chat_template", zephyr_}, {"eos_token", "</s>"}}.dump();
    const auto model = load_model(tiny.folder());
    for (const bool follow : {false, true}) {
        RunSpec spec = run_spec("one two", {"full", "window:budget=12"}, 100);
        spec.chat = true;
        spec.follow = follow;
        const SessionRun run = run_session(
            model, spec, {{3, fmt::format("force {}", kEos)}, {4, "say \"and\""}, {30, "say \"so\""}});
        for (const std::size_t lane : {0u, 1u}) {
            const std::string text = text_of(*model, run.tokens(lane));
            EXPECT_NE(text.find("</s>\n<|user|>\nand</s>\n<|assistant|>\n"), std::string::npos) << text;
            EXPECT_NE(text.find("</s>\n<|user|>\nso</s>\n<|assistant|>\n"), std::string::npos) << text;
            EXPECT_EQ(text.find("</s></s>"), std::string::npos) << text;
        }
    }
}

TEST_F(ChatSession, WithoutItTheTextIsWhatItWas) {
    const auto model = model_with(zephyr_);
    EXPECT_EQ(prompt_tokens(*model, "Who?", false), model->tokenizer().encode("Who?"));
    RunSpec spec = run_spec("Who?", {"full"}, 8);
    spec.ignore_eos = true;
    const SessionRun run = run_session(model, spec, [&](Session& session, int row) {
        EXPECT_EQ(session.run().start.chat, "");
        EXPECT_EQ(session.run().prompt_tokens, model->tokenizer().encode("Who?"));
        if (row == session.run().n_prompt() + 1) session.apply(parse_command("say \" And now?\""));
    });
    EXPECT_NE(text_of(*model, run.tokens(0)).find(" And now?"), std::string::npos);
    EXPECT_EQ(text_of(*model, run.tokens(0)).find("<|user|>"), std::string::npos);
}

// The tokenizer's end token may be none of the model's end tokens, and the template may not write it.
TEST_F(ChatSession, AnEndTokenThatEndsNothingIsNamed) {
    const auto notice = [&](const char* eos, const std::string& written) {
        const nlohmann::json config = {{"chat_template", "{{ bos_token }}" + written},
                                       {"bos_token", "<|endoftext|>"},
                                       {"eos_token", eos}};
        std::ofstream(folder_ / "tokenizer_config.json") << config.dump();
        return chat_notice(*load_model(folder_));
    };
    const std::string said = notice("a", zephyr_);
    EXPECT_NE(said.find("names a as eos_token"), std::string::npos) << said;
    EXPECT_EQ(said.find('\n'), std::string::npos);
    EXPECT_EQ(notice("<|endoftext|>", zephyr_), "") << "the model's own";
    const std::string by_template =
        "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + eos_token }}{% endfor %}"
        "{{ '<|assistant|>' }}";
    EXPECT_EQ(notice("~", by_template), "") << "the template's";
}

// A list of templates has one named "default"; chat_template.jinja wins over both.
TEST_F(ChatSession, TemplatesComeFromEveryPlaceOfAFolder) {
    EXPECT_EQ(model_with(zephyr_)->tokenizer().chat_template(), zephyr_);
    constexpr const char* kChatml =
        "{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}<|im_end|>{% endfor "
        "%}<|im_start|>a: ";
    const nlohmann::json list = {{{"name", "tools"}, {"template", "x"}},
                                 {{"name", "default"}, {"template", kChatml}}};
    EXPECT_EQ(chat_template_of(*model_with(list)).form, "chatml");
    EXPECT_EQ(model_with(nullptr)->tokenizer().chat_template(), "");
    EXPECT_EQ(model_with(17)->tokenizer().chat_template(), "");
    std::ofstream(folder_ / "chat_template.jinja") << kChatml;
    EXPECT_EQ(chat_template_of(*model_with(zephyr_)).form, "chatml");
}

TEST_F(ChatSession, ASystemMessageStandsBeforeTheFirstTurn) {
    const auto model = model_with(zephyr_);
    EXPECT_EQ(text_of(*model, prompt_tokens_behind("Be brief.", *model, "Who?")),
              "<|endoftext|><|system|>\nBe brief.</s>\n<|user|>\nWho?</s>\n<|assistant|>\n");
    const std::string no_place =
        "{% for m in messages %}{% if m.role != 'system' %}{{ '<|' + m.role + '|>\n' + m.content + '</s>\n' "
        "}}{% endif %}{% endfor %}{{ '<|assistant|>\n' }}";
    for (const nlohmann::json& chat : {nlohmann::json(no_place), nlohmann::json(nullptr)}) {
        const auto without = model_with(chat);
        EXPECT_NE(error_of([&] { (void)prompt_tokens_behind("Be brief.", *without, "Who?"); },
                           ErrorCode::unsupported)
                      .find("--system"),
                  std::string::npos);
    }
}

TEST_F(ChatSession, AnUnknownTemplateIsPlainTextAndSaysSo) {
    const auto unknown = model_with("{{ messages }}"), none = model_with(nullptr);
    EXPECT_NE(chat_notice(*unknown).find("unknown form"), std::string::npos);
    EXPECT_NE(chat_notice(*none).find("no chat template"), std::string::npos);
    const auto with_bos = model_with("{{ bos_token }}" + zephyr_), without = model_with(zephyr_);
    EXPECT_EQ(chat_notice(*with_bos), "");
    EXPECT_NE(chat_notice(*without).find("puts <|endoftext|> before every text"), std::string::npos);
    EXPECT_EQ(prompt_tokens(*with_bos, "Who?", true), prompt_tokens(*without, "Who?", true))
        << "one BOS, not two";
    EXPECT_NE(chat_notice(*model_with("{{ bos_token }}" + zephyr_ + "<think>")).find("earlier answers"),
              std::string::npos);
    EXPECT_EQ(prompt_tokens(*unknown, "Who?", true), unknown->tokenizer().encode("Who?"));
}

// A trace and run.json say that the run was a chat, and the run can be started again from them.
TEST_F(ChatSession, RecordsSayIt) {
    const auto model = model_with(zephyr_);
    for (const bool chat : {true, false}) {
        RunSpec spec = run_spec("Who is there?", {"full"}, 3);
        spec.chat = chat;
        const SessionRun run = run_session(model, spec);
        RunHistory history;
        history.update(run.steps);
        EXPECT_EQ(history.run().start.chat, chat ? "zephyr" : "");
        EXPECT_EQ(run_spec_of(history.run(), {}).chat, chat);
        const nlohmann::json json = nlohmann::json::parse(make_run_json(history, 0));
        EXPECT_EQ(json["start"].contains("chat"), chat);
        write_trace(run.steps, folder_ / "run.keyhole");
        EXPECT_EQ(read_trace(folder_ / "run.keyhole").front()->run->start.chat, chat ? "zephyr" : "");
    }
}

}  // namespace
}  // namespace reference::test_chat_session
