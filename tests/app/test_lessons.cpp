// Lessons: what their files may say, that every one that comes with Keyhole holds on its model, and how the
// window goes through them.
#include "app/actions/action_table.h"
#include "app/lessons/lesson_file.h"
#include "app/lessons/lesson_list.h"
#include "app/lessons/lesson_page.h"
#include "app/state/lesson_steps.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/mapped_file.h"
#include "tests/app/live_run.h"
#include "tests/app/program_run.h"
#include "tests/reference/source_folder.h"
#include "tests/reference/temp_folder.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace keyhole::test_lessons {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::string_view kSmall = R"({"version": 1, "title": "T", "question": "Q?",
    "run": {"prompt": "Once upon a time", "lanes": ["full", "window:budget=8"]},
    "steps": [{"text": "Look.", "do": ["step 20"], "reveal": {"text": "It keeps {1}.", "claims": [
        {"measure": "stored", "lane": 1, "is": 8}, {"measure": "evictions", "is": 0}]}}]})";

std::vector<fs::path> shipped() {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(reference::source_folder() / "assets/lessons"))
        files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    return files;
}

/// Returns the message with which a changed file is refused.
std::string refusal(const std::function<void(Json&)>& change) {
    Json json = Json::parse(kSmall);
    change(json);
    try {
        (void)parse_lesson(json.dump(), "x.json");
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::bad_file) << error.what();
        return error.what();
    }
    return "accepted";
}

std::string words(int n) {
    std::string text;
    for (int i = 0; i < n; ++i) text += "word ";
    return text;
}

TEST(LessonFile, ReadsWhatItWrote) {
    for (const fs::path& file : shipped()) {
        const Lesson lesson = read_lesson(file);
        EXPECT_EQ(parse_lesson(lesson_text(lesson), "again"), lesson) << file;
    }
    const std::string seed = read_text_file(reference::source_folder() / "tests/fuzz/seeds/lesson/all.json");
    const Lesson all = parse_lesson(seed, "seed");
    EXPECT_EQ(parse_lesson(lesson_text(all), "again"), all);
    EXPECT_EQ(all.steps[0].claims[0].measure, "kept");
    EXPECT_EQ(all.steps[1].run->model, "other");
    EXPECT_EQ(all.steps[1].run->prompt.file, "prompts/story.txt") << "a step's run begins as the lesson's";
    EXPECT_TRUE(all.steps[2].run->then.empty()) << "a new prompt has no continuation";
    ASSERT_TRUE(std::holds_alternative<TouchWords>(all.steps[0].commands[1].what));
    const TouchWords touch = std::get<TouchWords>(all.steps[0].commands[1].what);
    EXPECT_EQ(touch, (TouchWords{"evict", 1, "a b", 1, 2}));
}

TEST(LessonFile, RefusalsNameFileAndMember) {
    const auto step = [](Json& json) -> Json& { return json["steps"][0]; };
    const std::vector<std::pair<std::string, std::function<void(Json&)>>> cases = {
        {"x.json", [](Json& j) { j["version"] = 2; }},
        {"version is 2", [](Json& j) { j["version"] = 2; }},
        {"'titel' is not known", [](Json& j) { j["titel"] = "x"; }},
        {"title", [](Json& j) { j.erase("title"); }},
        {"question: it has 41 words", [](Json& j) { j["question"] = words(41); }},
        {"steps[0].text: it has 41 words", [&](Json& j) { step(j)["text"] = words(41); }},
        {"steps[0].reveal.text: it has 50 words", [&](Json& j) { step(j)["reveal"]["text"] = words(50); }},
        {"steps[0]: it has no text", [&](Json& j) { step(j).erase("text"); }},
        {"steps[0].do[0]", [&](Json& j) { step(j)["do"][0] = "quit"; }},
        {"'screenshot' is not known", [&](Json& j) { step(j)["do"][0] = "screenshot /tmp/x.png"; }},
        {"steps[0].do[0]", [&](Json& j) { step(j)["do"][0] = "step 0"; }},
        {"steps[0].do[0]", [&](Json& j) { step(j)["do"][0] = "evict 1 \"a"; }},
        {"run.lanes[1]", [](Json& j) { j["run"]["lanes"][1] = "winow"; }},
        {"run: it has no prompt", [](Json& j) { j["run"].erase("prompt"); }},
        {"named below assets/",
         [](Json& j) {
             j["run"]["prompt"] = {{"file", "../../etc/passwd"}};
         }},
        {"named below assets/",
         [](Json& j) {
             j["run"]["prompt"] = {{"file", "/etc/passwd"}};
         }},
        {"claims[0].measure is \"keeps\"",
         [&](Json& j) { step(j)["reveal"]["claims"][0]["measure"] = "keeps"; }},
        {"this measure is a number",
         [&](Json& j) {
             step(j)["reveal"]["claims"][0].erase("is");
             step(j)["reveal"]["claims"][0]["contains"] = "x";
         }},
        {"give one of is, above", [&](Json& j) { step(j)["reveal"]["claims"][0]["above"] = 1; }},
        {"give one of words, range",
         [&](Json& j) {
             step(j)["reveal"]["claims"][0]["words"] = "x";
             step(j)["reveal"]["claims"][0]["part"] = "prompt";
         }},
        {"predict.right is 2",
         [&](Json& j) {
             step(j)["predict"] = {{"question", "?"}, {"choices", {"a", "b"}}, {"right", 2}};
         }},
        {"predict.claim is 3",
         [&](Json& j) {
             step(j)["predict"] = {{"question", "?"}, {"low", 0}, {"high", 1}, {"claim", 3}};
         }},
        {"look.at is \"sky\"",
         [&](Json& j) {
             step(j)["look"] = {{"at", "sky"}};
         }},
        {"play.key",
         [&](Json& j) {
             step(j)["play"] = {{"text", "t"}, {"key", "budgets"}, {"low", 1}, {"high", 2}};
         }},
        {"stop", [](Json& j) { j["run"]["stop"] = {""}; }},
    };
    for (const auto& [part, change] : cases)
        EXPECT_NE(refusal(change).find(part), std::string::npos) << part << ": " << refusal(change);
    EXPECT_EQ(refusal([](Json&) {}), "accepted");
    EXPECT_THROW((void)parse_lesson("{", "x.json"), Error);
    EXPECT_THROW((void)parse_lesson("[]", "x.json"), Error);
}

TEST(LessonFile, AShelfShowsAFaultyFileAndFindsByNumberNameAndPath) {
    const reference::TempFolder folder("lessons");
    ::setenv("XDG_DATA_HOME", folder.path().c_str(), 1);
    const fs::path own = own_lessons_folder();
    EXPECT_EQ(own, folder.path() / "keyhole" / "lessons");
    fs::create_directories(own);
    std::ofstream(own / "broken.json") << "{";
    std::ofstream(own / "mine.json") << kSmall;
    const std::vector<ListedLesson> all = list_all_lessons();
    EXPECT_EQ(all.size(), shipped().size() + 2);
    EXPECT_EQ(find_lesson("9", all).name, "lost-needle");
    EXPECT_EQ(find_lesson("lost-needle", all).lesson.number, 9);
    EXPECT_TRUE(find_lesson("mine", all).own);
    EXPECT_EQ(find_lesson((own / "mine.json").string(), all).lesson.title, "T");
    EXPECT_THROW((void)find_lesson("broken", all), Error);
    try {
        (void)find_lesson("lost-neddle", all);
        FAIL();
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("did you mean 'lost-needle'"), std::string::npos)
            << error.what();
    }
    ::unsetenv("XDG_DATA_HOME");
}

/// Every lesson is numbered in order, and says nothing that it does not measure.
TEST(Lessons, AreInOrderAndEachNumberInAStepIsMeasured) {
    std::set<int> numbers;
    for (const fs::path& file : shipped()) {
        SCOPED_TRACE(file.filename().string());
        const Lesson lesson = read_lesson(file);
        numbers.insert(lesson.number);
        EXPECT_GE(lesson.steps.size(), 2u);
        EXPECT_TRUE(std::any_of(lesson.steps.begin(), lesson.steps.end(), [](const LessonStep& step) {
            return step.predict.has_value();
        })) << "nothing to predict";
        for (const LessonStep& step : lesson.steps) {
            EXPECT_NE(step.look.pane, Pane::none) << step.title << ": nothing to look at";
            EXPECT_FALSE(step.claims.empty()) << step.title << ": nothing is measured";
            const auto says = [&](const std::string& words) {
                return step.reveal.find(words) != std::string::npos;
            };
            for (std::size_t i = 0; i < step.claims.size(); ++i)
                EXPECT_TRUE(!step.claims[i].over || !says(fmt::format("{{{}}}", i + 1)) || says("×") ||
                            says("times"))
                    << step.title << ": a ratio reads as a value";
            for (std::size_t i = step.claims.size() + 1; i <= 9; ++i)
                EXPECT_EQ(step.reveal.find(fmt::format("{{{}}}", i)), std::string::npos) << step.title;
        }
    }
    EXPECT_EQ(numbers.size(), 32u);
    EXPECT_EQ(*numbers.begin(), 1);
    EXPECT_EQ(*numbers.rbegin(), 32);
}

/// Who always takes the same place is right no more often than by chance.
TEST(Lessons, RightAnswersStandInEveryPlaceEquallyOften) {
    std::map<std::size_t, std::vector<int>> by_size;  // number of choices: how often each place is right
    for (const fs::path& file : shipped())
        for (const LessonStep& step : read_lesson(file).steps) {
            if (!step.predict || step.predict->kind != Prediction::Kind::choice) continue;
            std::vector<int>& places = by_size[step.predict->choices.size()];
            places.resize(step.predict->choices.size());
            ++places[to_index(step.predict->right)];
        }
    for (const std::size_t n : {2u, 3u}) {
        const auto [least, most] = std::minmax_element(by_size[n].begin(), by_size[n].end());
        EXPECT_LE(*most - *least, 1) << n << " choices";
    }
}

/// A class tries something in every lesson.
TEST(Lessons, HaveAPlay) {
    for (const fs::path& file : shipped()) {
        const Lesson lesson = read_lesson(file);
        EXPECT_TRUE(std::any_of(lesson.steps.begin(), lesson.steps.end(), [](const LessonStep& step) {
            return step.play.has_value();
        })) << file;
    }
}

/// Models by name, loaded once for all lessons.
std::shared_ptr<const Model> model_of(const std::string& name) {
    static std::map<std::string, std::shared_ptr<const Model>> loaded;
    std::shared_ptr<const Model>& model = loaded[name];
    if (model == nullptr) {
        const std::vector<CatalogModel> catalog = own_catalog();
        model = load_model(path_if_here(*find_in_catalog(catalog, name)).value());
    }
    return model;
}

class EveryLesson : public ::testing::TestWithParam<fs::path> {};

TEST_P(EveryLesson, HoldsOnItsModel) {
    const Lesson lesson = read_lesson(GetParam());
    const std::vector<CatalogModel> catalog = own_catalog();
    std::set<std::string> names = {lesson.run.model};
    for (const LessonStep& step : lesson.steps)
        if (step.run) names.insert(step.run->model);
    for (const std::string& name : names) {
        const CatalogModel* model = find_in_catalog(catalog, name);
        ASSERT_NE(model, nullptr) << name;
        if (!path_if_here(*model)) GTEST_SKIP() << name << " is not here: keyhole get " << name;
    }
    const LessonCheck check = check_lesson(lesson, model_of, {BackendChoice::cpu, 2, 0});
    ASSERT_EQ(check.steps.size(), lesson.steps.size());
    for (std::size_t i = 0; i < check.steps.size(); ++i) {
        EXPECT_EQ(check.steps[i].fault, "") << "step " << i + 1;
        for (std::size_t k = 0; k < check.steps[i].claims.size(); ++k)
            EXPECT_TRUE(check.steps[i].claims[k].holds)
                << "step " << i + 1 << ", " << claim_text(lesson.steps[i].claims[k]) << "; measured "
                << measured_text(lesson.steps[i].claims[k], check.steps[i].claims[k]);
    }
}

INSTANTIATE_TEST_SUITE_P(Shipped, EveryLesson, ::testing::ValuesIn(shipped()),
                         [](const ::testing::TestParamInfo<fs::path>& of) {
                             return "Number" + of.param.stem().string().substr(0, 2);
                         });

class Measures : public testing::LiveRun {
  protected:
    Measured measured(const std::string& claim) {
        Json json = Json::parse(kSmall);
        json["steps"][0]["reveal"]["claims"] = {Json::parse(claim)};
        const Lesson lesson = parse_lesson(json.dump(), "claim");
        return measure_claim(lesson.steps[0].claims[0], lesson_evidence(app));
    }
};

// Against what the history says, token by token and head by head.
TEST_F(Measures, CountWhatTheHistoryHolds) {
    const RunHistory& history = app.run.history;
    const int row = history.last_row(), lane = 1;
    double stored = 0, kept_of_end = 0;
    int n_evictions = 0, first = -1;
    for (int g = 0; g < 48; ++g)
        for (int p = 0; p <= row; ++p) {
            stored += history.stored(lane, g, p, row) ? 1 : 0;
            if (p > row - 4) kept_of_end += history.stored(lane, g, p, row) ? 1 : 0;
            const int at = history.evicted_at(lane, g, p);
            n_evictions += at >= 0 ? 1 : 0;
            if (at >= 0 && (first < 0 || at < first)) first = at;
        }
    EXPECT_DOUBLE_EQ(measured(R"({"measure": "stored", "lane": 1, "above": 0})").value, stored / 48);
    EXPECT_DOUBLE_EQ(
        measured(
            fmt::format(R"({{"measure": "kept", "lane": 1, "range": [{}, {}], "above": 0}})", row - 3, row))
            .value,
        kept_of_end / 48 / 4);
    EXPECT_EQ(measured(R"({"measure": "evictions", "lane": 1, "above": 0})").value, n_evictions);
    EXPECT_EQ(measured(R"({"measure": "first_eviction", "lane": 1, "above": 0})").value, first);
    EXPECT_EQ(measured(R"({"measure": "stored", "above": 0})").value, row + 1);
    EXPECT_EQ(measured(R"({"measure": "kv_heads", "is": 48})").value, 48);
    EXPECT_EQ(measured(R"({"measure": "token_bytes", "is": 6144})").value, 6144);
    EXPECT_EQ(measured(R"({"measure": "paged_bytes", "above": 0})").value, 6144 * 16 * (row / 16 + 1));
    const double of_lane = measured(R"({"measure": "paged_bytes", "lane": 1, "above": 0})").value;
    EXPECT_GE(of_lane, stored / 48 * 6144);
    EXPECT_EQ(std::fmod(of_lane, 1024 * 16), 0) << "whole pages of a layer";
    EXPECT_EQ(measured(R"({"measure": "overlap", "lane": 0, "other": 0, "is": 1})").value, 1);
    // All attention of a row is on all tokens.
    EXPECT_NEAR(measured(R"({"measure": "attention", "lane": 1, "range": [0, 999], "above": 0})").value, 1,
                2e-3);
    EXPECT_EQ(measured(R"({"measure": "heads_above", "range": [0, 999], "more_than": 0.9, "is": 1})").value,
              1);
    double nats = 0;
    for (int r = row - 3; r <= row; ++r) nats -= double(history.lane_record(r, lane)->log_prob) / 4;
    EXPECT_NEAR(measured(R"({"measure": "perplexity", "lane": 1, "above": 0})").value, std::exp(nats), 1e-9);
    EXPECT_EQ(measured(R"({"measure": "broken", "lane": 1, "is": 0})").value, 0);
    EXPECT_NEAR(measured(R"({"measure": "stored", "lane": 1, "over": 0, "above": 0})").value,
                stored / 48 / (row + 1), 1e-12);
}

TEST_F(Measures, WhatDoesNotFitTheRunIsAFaultAndNotAValue) {
    EXPECT_NE(measured(R"({"measure": "kept", "lane": 7, "above": 0})").fault.find("no lane 7"),
              std::string::npos);
    EXPECT_NE(measured(R"({"measure": "kept", "words": "zebra", "above": 0})").fault, "");
    EXPECT_NE(measured(R"({"measure": "attention", "layer": 99, "above": 0})").fault.find("6 layers"),
              std::string::npos);
    EXPECT_FALSE(measured(R"({"measure": "first_eviction", "lane": 0, "above": 0})").holds);
    const Measured broken = measured(R"({"measure": "stored", "lane": 1, "is": 999})");
    EXPECT_EQ(broken.fault, "");
    EXPECT_FALSE(broken.holds);
}

TEST_F(Measures, AlteredRecordsAreFoundAndSoundOnesAreNot) {
    for (const char* kind : {"mask", "twice", "attention"}) {
        const StepList altered = altered_records(app.run.history.steps(), {1, kind});
        RunHistory history;
        history.update(altered);
        const auto broken = [&](int lane) {
            const auto findings = examine(history, lane, history.last_row());
            return !healthy(findings);
        };
        EXPECT_TRUE(broken(1)) << kind;
        EXPECT_FALSE(broken(0)) << kind;
        EXPECT_TRUE(healthy(examine(app.run.history, 1, app.run.last_row()))) << kind;
    }
    EXPECT_THROW((void)altered_records(app.run.history.steps(), {5, "mask"}), Error);
    EXPECT_THROW((void)altered_records(app.run.history.steps(), {0, "twice"}), Error)
        << "nothing was evicted";
}

/// Lessons in the window's state, without a window.
class LessonSteps : public testing::LiveRun {
  protected:
    void SetUp() override {
        ::setenv("XDG_DATA_HOME", folder.path().c_str(), 1);
        std::ofstream(folder.path() / "small.json") << kSmall;
    }
    void TearDown() override { ::unsetenv("XDG_DATA_HOME"); }
    void run(const std::string& text) {
        run_action(app, text);
        settle();
        apply_lesson_look(app);
    }
    const LessonState& lesson() const { return app.lesson; }
    bool holds() const {
        return !lesson().at_reveal.empty() &&
               std::all_of(lesson().at_reveal.begin(), lesson().at_reveal.end(),
                           [](const Measured& m) { return m.holds; });
    }
    reference::TempFolder folder{"lesson-steps"};
};

TEST_F(LessonSteps, PredictRevealAndGoOn) {
    run("lesson 9");
    ASSERT_TRUE(lesson().shown);
    EXPECT_EQ(lesson().step, 0);
    EXPECT_EQ(app.run.lane_editor.n_lanes(), 6);
    EXPECT_FALSE(lesson().revealed);
    EXPECT_TRUE(lesson().now.empty()) << "nothing is measured before the reveal";
    run("lesson.predict 2");
    run("lesson.next");
    EXPECT_TRUE(lesson().revealed);
    EXPECT_TRUE(holds());
    EXPECT_EQ(predicted_right(app), true);
    EXPECT_EQ(app.view.arrangement, Arrangement::teach);
    run("lesson.next");
    EXPECT_EQ(lesson().step, 1);
    EXPECT_FALSE(lesson().revealed);
    run("lesson.next");
    run("lesson.next");
    run("lesson.next");
    EXPECT_EQ(lesson().step, 2);
    EXPECT_TRUE(holds());
    // Playing changes the run, and the measured values with it; what the reveal said stays.
    const std::uint64_t id = app.run.history.run().id;
    run("lesson.play 370");
    EXPECT_EQ(format_lane_spec(app.run.lane_editor.lanes()[3]), "h2o:budget=370");
    EXPECT_TRUE(holds());
    // The next step begins from the lesson's own run.
    run("lesson.next");
    EXPECT_EQ(lesson().step, 3);
    EXPECT_NE(app.run.history.run().id, id);
    run("lesson.next");
    EXPECT_TRUE(holds());
    EXPECT_EQ(format_lane_spec(app.run.lane_editor.lanes()[3]), "h2o:budget=128");
    run("lesson.back");
    EXPECT_EQ(lesson().step, 2);
    EXPECT_EQ(format_lane_spec(app.run.lane_editor.lanes()[3]), "h2o:budget=64") << "as the step begins";
    run("lesson.close");
    EXPECT_FALSE(lesson().open());
    EXPECT_THROW(run_action(app, "lesson.next"), Error);
}

// The answer to a question that comes after the caches were cut does not follow later settings: a changed
// lane begins the run anew, and goes on to where it was.
TEST_F(LessonSteps, PlayingWithALateQuestionBeginsAnew) {
    run("lesson 31");
    for (int i = 0; i < 3; ++i) run("lesson.next");
    ASSERT_EQ(lesson().step, 1);
    ASSERT_TRUE(lesson().revealed && holds());
    const std::uint64_t id = app.run.history.run().id;
    const int last = app.run.last_row();
    const std::vector<Measured> at_reveal = lesson().at_reveal;
    const auto answer = [&] { return std::string(lesson_evidence(app).answers[2].text); };
    EXPECT_NE(answer().find("4821"), std::string::npos);
    run("lesson.play 16");
    EXPECT_NE(app.run.history.run().id, id);
    EXPECT_EQ(app.run.last_row(), last);
    EXPECT_EQ(format_lane_spec(app.run.lane_editor.lanes()[2]), "quest:read=16");
    EXPECT_EQ(answer().find("4821"), std::string::npos) << answer();
    EXPECT_EQ(lesson().step, 1);
    EXPECT_TRUE(lesson().revealed);
    ASSERT_EQ(lesson().at_reveal.size(), at_reveal.size());
    EXPECT_EQ(lesson().at_reveal[2].value, at_reveal[2].value) << "what the reveal said stays";
    EXPECT_GT(lesson().now.at(2).value, at_reveal[2].value);
    run("lesson.reset");
    EXPECT_EQ(format_lane_spec(app.run.lane_editor.lanes()[2]), "quest:read=64");
    run("lesson 24");
    for (int i = 0; i < 5; ++i) run("lesson.next");
    ASSERT_EQ(lesson().step, 2);
    run("lesson.play 359");
    EXPECT_NE(lesson_evidence(app).answers[3].text.find("4821"), std::string::npos)
        << "TOVA keeps the whole story";
}

// The step after one that was played with begins from the lesson's own run.
TEST_F(LessonSteps, NoStepGoesOnFromAPlayedRun) {
    const fs::path own = folder.path() / "played.json";
    {
        Json json = Json::parse(
            read_text_file(reference::source_folder() / "assets/lessons/31-keep-all-read-little.json"));
        json["steps"][0]["play"] = json["steps"][1]["play"];
        std::ofstream(own) << json;
    }
    run("lesson " + own.string());
    run("lesson.next");
    ASSERT_TRUE(lesson().revealed && holds());
    run("lesson.play 16");
    ASSERT_EQ(format_lane_spec(app.run.lane_editor.lanes()[2]), "quest:read=16");
    const std::uint64_t id = app.run.history.run().id;
    run("lesson.play 16");
    EXPECT_EQ(app.run.history.run().id, id) << "nothing has changed";
    run("lesson.next");
    EXPECT_EQ(lesson().step, 1);
    EXPECT_EQ(format_lane_spec(app.run.lane_editor.lanes()[2]), "quest:read=64");
    run("lesson.next");
    EXPECT_TRUE(holds());
}

TEST_F(LessonSteps, ClosingBringsTheRunBack) {
    run("lane 1 h2o:budget=9");
    run("step 3");
    run("evict 0 2");
    run("add tova:budget=10");
    run("step 2");
    run("bookmark here");
    run("mode.score");
    run("goto 2 3");
    run("lane.focus 2");
    const auto kept = [&] {
        std::vector<std::vector<std::int32_t>> all;
        for (const auto& lane : app.run.history.lanes()) all.push_back(lane.evicted_at);
        return all;
    };
    const auto before = kept();
    const std::string prompt = app.run.setup.prompt;
    const int n = app.run.n_decoded();
    const auto expect_back = [&] {
        EXPECT_FALSE(lesson().open());
        EXPECT_EQ(app.run.setup.prompt, prompt);
        EXPECT_EQ(app.run.n_decoded(), n);
        EXPECT_EQ(kept(), before);
        EXPECT_EQ(app.run.lane_editor.n_lanes(), 3);
        EXPECT_EQ(format_lane_spec(app.run.lane_editor.lanes()[1]), "h2o:budget=9");
        EXPECT_EQ(app.view.arrangement, Arrangement::explore);
        EXPECT_EQ(app.view.mode, HeatMode::score);
        EXPECT_EQ(std::tuple(app.view.lane, app.view.layer, app.view.head), std::tuple(2, 2, 3));
        EXPECT_EQ(app.annotations.bookmarks.size(), 1u);
        EXPECT_FALSE(lesson().before);
    };
    run("lesson 9");
    run("lesson.next");
    EXPECT_EQ(app.view.arrangement, Arrangement::teach);
    run("lesson 18");  // from one lesson to another; this one shows altered records
    run("lesson.step 3");
    run("lesson.next");
    run("lesson.close");
    expect_back();
    run("lesson 9");
    run("lesson.close keep");
    EXPECT_EQ(app.run.lane_editor.n_lanes(), 6);
    EXPECT_FALSE(lesson().before);
    // A run that the user starts in a lesson stays.
    run("lesson 5");
    run("prompt The dog ran.");
    run("lesson.close");
    EXPECT_EQ(app.run.history.run().prompt, "The dog ran.");
    EXPECT_EQ(app.view.arrangement, Arrangement::teach);
}

TEST_F(LessonSteps, IsFinishedWhenItsLastStepIsSeen) {
    run("lesson 5");
    const int n = static_cast<int>(lesson().lesson().steps.size());
    run(fmt::format("lesson.step {}", n));
    EXPECT_FALSE(app.recent.has_finished("until-full")) << "its last step is not revealed";
    run("lesson.next");
    EXPECT_EQ(app.recent.lessons, std::vector<std::string>{"until-full"});
}

TEST_F(LessonSteps, ClosingBringsATraceBack) {
    const std::string file = (folder.path() / "run.keyhole").string();
    run("file.save " + file);
    run("open " + file);
    ASSERT_FALSE(app.run.live());
    const auto last = app.run.last_row();
    run("lesson 9");
    EXPECT_TRUE(app.run.live());
    run("lesson.close");
    EXPECT_EQ(app.run.opened_file.string(), file);
    EXPECT_EQ(app.run.last_row(), last);
}

TEST_F(LessonSteps, ResetBringsTheStepBack) {
    run("lesson 5");
    run("lesson.next");
    EXPECT_EQ(app.run.n_decoded(), 50);
    run("lane 1 h2o:budget=9");
    run("step 7");
    run("lesson.reset");
    EXPECT_EQ(app.run.n_decoded(), 0);
    EXPECT_EQ(format_lane_spec(app.run.lane_editor.lanes()[1]), "h2o:budget=64");
    EXPECT_FALSE(lesson().revealed);
    run("lesson.step 3");
    EXPECT_EQ(app.run.n_decoded(), 110) << "the steps before it have been run";
    run("lesson.next");
    EXPECT_TRUE(holds());
}

TEST_F(LessonSteps, OfAnotherModelIsCheckedFirst) {
    const std::vector<CatalogModel> catalog = own_catalog();
    std::ofstream(folder.path() / "mqa.json")
        << R"({"version": 1, "title": "T", "question": "Q?", "run": {"model": "keyhole-mqa",
               "prompt": "Once upon a time"}, "steps": [{"text": "Look.", "reveal": {"claims": [
               {"measure": "token_bytes", "is": 768}]}}, {"text": "And.", "reveal": {"claims": [
               {"measure": "kv_heads", "above": 0}]}}]})";
    run("lesson " + (folder.path() / "mqa.json").string());
    EXPECT_TRUE(lesson().asks);
    ASSERT_NE(lesson().check, nullptr);
    EXPECT_EQ(lesson().check->failing(), std::vector<int>{1});
    run("lesson.stay");
    EXPECT_FALSE(lesson().asks);
    run("lesson.next");
    EXPECT_FALSE(holds()) << "the loaded model does not show it, and the step says so";
    EXPECT_NE(app.run.history.run().model_path.find("keyhole-base"), std::string::npos);
    run("lesson.model");
    run("lesson.next");
    EXPECT_TRUE(holds());
    EXPECT_NE(app.run.history.run().model_path.find("keyhole-mqa"), std::string::npos);
}

TEST_F(LessonSteps, ATokenIsPredictedByAClickAndGivenBack) {
    run("lesson 21");
    app.view.curve_positions = {80};  // as the window picks tokens of a new prompt
    app.lesson.look_due = true;
    apply_lesson_look(app);
    EXPECT_TRUE(app.view.curve_positions.empty()) << "a framed token would draw the eye";
    const auto span = span_of(TokenSet{"4821", {}, {}}, app.run.history, app.need_shown_lane());
    ASSERT_TRUE(span);
    run(fmt::format("pick {} {}", app.run.last_row(), span->first));
    run("lesson.next");
    EXPECT_EQ(lesson().in_sight, std::pair(span->last, app.run.last_row()));
    EXPECT_EQ(predicted_right(app), true);
    EXPECT_TRUE(holds()) << "the engine ran the lane once more";
}

TEST_F(LessonSteps, AFaultyLaneIsAlteredInItsRecordsAlone) {
    run("lesson 18");
    run("lesson.next");
    EXPECT_TRUE(holds());
    run("lesson.next");
    run("lesson.next");
    EXPECT_TRUE(holds());
    EXPECT_FALSE(app.run.live()) << "altered records are not continued";
    run("lesson.reset");
    EXPECT_TRUE(app.run.live());
    EXPECT_EQ(app.run.n_decoded(), 10);
}

TEST_F(LessonSteps, AFaultInAFileIsSaidAndLeavesTheWindow) {
    std::ofstream(folder.path() / "far.json")
        << R"({"version": 1, "title": "T", "question": "Q?", "run": {"prompt": "Once"},
               "steps": [{"text": "x", "do": ["evict 4 \"zebra\""]}]})";
    run("lesson " + (folder.path() / "far.json").string());
    EXPECT_NE(lesson().fault.find("not in the text"), std::string::npos) << lesson().fault;
    EXPECT_THROW(run_action(app, "lesson 77"), Error);
    EXPECT_THROW(run_action(app, "lesson.step 9"), Error);
    EXPECT_THROW(run_action(app, "lesson.predict 1"), Error);
    EXPECT_THROW(run_action(app, "lesson.play 1"), Error);
}

TEST_F(LessonSteps, ARunBecomesALessonThatHolds) {
    run("prompt The code of the gate is 4821. The cat sat on the mat. The code of the gate is");
    app.run.setup.guide.answer = "4821";
    run("step 3");
    run("bookmark The beginning.");
    run("lane 1 window:budget=6");
    run("evict 0 3");
    run("step 4");
    run("bookmark The end.");
    const std::vector<LaneAnswer> answers = *app.run.status.answers;
    run("lesson.save My gate");
    ASSERT_TRUE(lesson().shown);
    const fs::path file = folder.path() / "keyhole/lessons/my-gate.json";
    EXPECT_TRUE(fs::exists(file));
    EXPECT_TRUE(lesson().edits);
    const Lesson made = read_lesson(file);
    ASSERT_EQ(made.steps.size(), 2u);
    EXPECT_EQ(made.steps[0].text, "The beginning.");
    EXPECT_EQ(made.run.model, "keyhole-base");
    // The file is handed on, so it names no path of this machine.
    const fs::path own = std::exchange(app.run.setup.model_folder, "/home/someone/private");
    try {
        run_action(app, "lesson.save Private");
        ADD_FAILURE();
    } catch (const Error& error) {
        const std::string said = error.what();
        EXPECT_NE(said.find("its model private is not in the catalogue"), std::string::npos) << said;
        EXPECT_EQ(said.find("someone"), std::string::npos) << said;
    }
    app.run.setup.model_folder = own.parent_path() / "." / own.filename();  // the same, written otherwise
    EXPECT_EQ(lesson_of_run(app, "T").run.model, "keyhole-base");
    app.run.setup.model_folder = own;
    EXPECT_EQ(made.run.lanes[1], "h2o:budget=12") << "as the run began";
    const LessonCheck check = check_lesson(made, model_of, {BackendChoice::cpu, 2, 0});
    EXPECT_TRUE(check.holds()) << check.steps[1].fault;
    EXPECT_EQ(check.steps[1].claims.size(), 2u);
    run("lesson.step 2");
    run("lesson.next");
    EXPECT_EQ(app.run.n_decoded(), 7);
    EXPECT_TRUE(holds());
    // Texts are edited in place, and the reader's bounds hold.
    run("lesson.set text A better text.");
    EXPECT_EQ(read_lesson(file).steps[1].text, "A better text.");
    EXPECT_THROW(run_action(app, "lesson.set text " + words(50)), Error);
    EXPECT_EQ(read_lesson(file).steps[1].text, "A better text.");
    EXPECT_EQ(lesson().at().text, "A better text.");
    // A teacher asks for a prediction, and says what is ringed.
    run("lesson.set predict Does it know the code?");
    run("lesson.set choices Yes | *No | It says nothing");
    run("lesson.set look gate");
    const LessonStep asked = read_lesson(file).steps[1];
    ASSERT_TRUE(asked.predict);
    EXPECT_EQ(asked.predict->question, "Does it know the code?");
    EXPECT_EQ(asked.predict->choices, (std::vector<std::string>{"Yes", "No", "It says nothing"}));
    EXPECT_EQ(asked.predict->right, 1);
    EXPECT_EQ(asked.look.tokens.words, "gate");
    EXPECT_EQ(asked.look.pane, Pane::text);
    EXPECT_THROW(run_action(app, "lesson.set choices one"), Error);
    run("lesson.set predict");
    EXPECT_FALSE(read_lesson(file).steps[1].predict);
    run("lesson.add And one more.");
    EXPECT_EQ(read_lesson(file).steps.size(), 3u);
    EXPECT_EQ(lesson().step, 2);
    run("lesson.drop");
    EXPECT_EQ(read_lesson(file).steps.size(), 2u);
    // One of Keyhole's own lessons is copied before it is changed, also where its path names it.
    run("lesson " + (reference::source_folder() / "assets/lessons/05-until-full.json").string());
    run("lesson.set question Is it?");
    EXPECT_EQ(read_lesson(folder.path() / "keyhole/lessons/until-full.json").question, "Is it?");
    EXPECT_NE(read_lesson(reference::source_folder() / "assets/lessons/05-until-full.json").question,
              "Is it?");
}

TEST_F(LessonSteps, APageHoldsTextsValuesAndPictures) {
    run("lesson 9");
    const std::string page = (folder.path() / "page.html").string();
    run_action(app, "lesson.print " + page);
    ASSERT_TRUE(wakes.wait_until([&] { return !app.jobs.export_job.running(); }));
    app.refresh();
    const std::string html = read_text_file(page);
    EXPECT_NE(html.find("The lost needle"), std::string::npos);
    EXPECT_NE(html.find("<td>4821</td>"), std::string::npos) << "what the lanes answered";
    EXPECT_NE(html.find("3333"), std::string::npos);
    EXPECT_EQ(html.find("{1}"), std::string::npos) << "values stand in the text";
    EXPECT_NE(html.find("<s>"), std::string::npos) << "the text with what was evicted";
    EXPECT_NE(html.find("<code>h2o:budget=128</code>"), std::string::npos) << "as the reveal set it";
    EXPECT_NE(html.find("☑ Only one: TOVA"), std::string::npos);
    const std::string handout = (folder.path() / "handout.html").string();
    run_action(app, "lesson.handout " + handout);
    ASSERT_TRUE(wakes.wait_until([&] { return !app.jobs.export_job.running(); }));
    app.refresh();
    EXPECT_NE(read_text_file(handout).find("☐ Only one: TOVA"), std::string::npos);
}

/// Returns how often a text holds another.
int count_of(std::string_view text, std::string_view part) {
    int n = 0;
    for (std::size_t at = 0; (at = text.find(part, at)) != std::string_view::npos; at += part.size()) ++n;
    return n;
}

// The command line.
class LessonCommandLine : public testing::ProgramRun {};

TEST_F(LessonCommandLine, ListsReadsChecksAndPrints) {
    const std::string home = "XDG_DATA_HOME='" + path("data") + "'";
    EXPECT_EQ(run("lesson --list", home), 0) << output_;
    EXPECT_NE(output_.find("  9 lost-needle"), std::string::npos) << output_;
    EXPECT_EQ(run("lesson 9 < /dev/null", home), 0) << output_;
    EXPECT_NE(output_.find("Full: 4821. TOVA: 4821."), std::string::npos) << output_;
    EXPECT_NE(output_.find("Predict:"), std::string::npos) << output_;
    EXPECT_EQ(run("lesson --check until-full", home), 0) << output_;
    EXPECT_NE(output_.find(", 0 do not hold"), std::string::npos) << output_;
    // What one model shows another need not show, and the exit status says so.
    EXPECT_EQ(run("lesson --check 6 --model keyhole-mqa", home), 1) << output_;
    EXPECT_NE(output_.find(" NO"), std::string::npos) << output_;
    EXPECT_EQ(run("lesson 15 --print '" + path("page.html") + "'", home), 0) << output_;
    EXPECT_NE(read_text_file(path("page.html")).find("data:image/png;base64,iVBOR"), std::string::npos);
    EXPECT_EQ(run("lesson 12 --print '" + path("notes.html") + "'", home), 0) << output_;
    const std::string notes = read_text_file(path("notes.html"));
    EXPECT_NE(notes.find("For the teacher: A2SF"), std::string::npos);
    EXPECT_NE(notes.find("The text of lane 4."), std::string::npos);
    EXPECT_EQ(run("lesson 5 --print '" + path("guess.html") + "'", home), 0) << output_;
    EXPECT_NE(read_text_file(path("guess.html")).find("Between 0 and 120: ________"), std::string::npos);
    // A handout has every question, and nothing that answers it.
    EXPECT_EQ(run("lesson 9 10 --print '" + path("pupil.html") + "' --for pupil", home), 0) << output_;
    const std::string pupil = read_text_file(path("pupil.html"));
    EXPECT_EQ(count_of(pupil, "<article"), 2);
    EXPECT_EQ(count_of(pupil, "href=\"#lesson"), 2);
    EXPECT_NE(pupil.find("which lanes give the right answer?"), std::string::npos);
    EXPECT_GT(count_of(pupil, "☐"), 6);
    for (const char* answer : {"☑", "Seen:", "3333", "For the teacher", "<th>", "Why TOVA is right"})
        EXPECT_EQ(count_of(pupil, answer), 0) << answer;
    EXPECT_EQ(run("lesson 9 --for pupil", home), 2);
    EXPECT_NE(output_.find("add --print FILE"), std::string::npos) << output_;
    EXPECT_EQ(run("lesson --check --json until-full", home), 0) << output_;
    EXPECT_TRUE(Json::parse(output_.substr(output_.find('['))).is_array());
}

TEST_F(LessonCommandLine, WrongUseAndHostileFilesAreOneLine) {
    EXPECT_EQ(run("lesson 99"), 2);
    EXPECT_EQ(std::count(output_.begin(), output_.end(), '\n'), 1) << output_;
    std::ofstream(path("bad.json")) << "{\"version\": 1, \"title\": \"\x1b[31m\", \"question\": 3}";
    EXPECT_EQ(run("lesson --check '" + path("bad.json") + "'"), 1);
    EXPECT_EQ(std::count(output_.begin(), output_.end(), '\n'), 1) << output_;
    EXPECT_EQ(output_.find('\x1b'), std::string::npos) << output_;
    std::ofstream(path("esc.json")) << R"({"version": 1, "title": "a\u001b[31m", "question": "q\u001b[0m",
        "run": {"prompt": "Once"}, "steps": [{"text": "t\u001b[1m", "reveal": {"text": "\u0007"}}]})";
    EXPECT_EQ(run("lesson '" + path("esc.json") + "' < /dev/null"), 0) << output_;
    EXPECT_EQ(output_.find('\x1b'), std::string::npos) << output_;
    std::ofstream(path("deep.json")) << std::string(100000, '[');
    EXPECT_EQ(run("lesson --check '" + path("deep.json") + "'"), 1) << output_;
}

}  // namespace
}  // namespace keyhole::test_lessons
