// Strips of ticks and crosses: what each lane answers with other values of an option. Their answers equal
// those of `keyhole decode`; they are computed while the run rests, and the run does not change.
#include "app/state/answer_strips.h"
#include "app/state/shown_answers.h"
#include "tests/app/live_run.h"
#include "tests/app/program_run.h"
#include "tests/reference/temp_folder.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace keyhole::test_answer_strips {
namespace {

using Mark = AnswerLine::Mark;
using Values = std::vector<std::string>;

TEST(StripValues, OfTheBudgetDoubleInFourStepsAndHoldTheLanesOwn) {
    const Values values = strip_values(parse_lane_spec("h2o:budget=65"), "budget", 370, 24);
    EXPECT_EQ(values, (Values{"16", "20", "24",  "28",  "32",  "40",  "48",  "56",  "64",  "65",
                              "80", "96", "112", "128", "160", "192", "224", "256", "320", "394"}));
    EXPECT_EQ(strip_values(parse_lane_spec("h2o:budget=64"), "budget", 2000, 24).size(), 15u)
        << "two for each doubling where the prompt is long";
    const Values shares = strip_values(parse_lane_spec("h2o:budget=20%"), "budget", 370, 24);
    const auto own = std::find(shares.begin(), shares.end(), "20%");
    ASSERT_NE(own, shares.end());
    EXPECT_EQ(*(own - 1), "64");  // 20 % are 74 tokens
    EXPECT_EQ(*(own + 1), "80");
}

TEST(StripValues, OfOtherOptionsWhereTheyActOnTheLane) {
    EXPECT_TRUE(strip_values(parse_lane_spec("full"), "budget", 370, 24).empty());
    EXPECT_TRUE(strip_values(parse_lane_spec("window:budget=64"), "alpha", 370, 24).empty());
    const Values alphas = strip_values(parse_lane_spec("a2sf:budget=64,alpha=0.15"), "alpha", 370, 24);
    EXPECT_EQ(alphas[2], "0.15");
    EXPECT_EQ(strip_values(parse_lane_spec("h2o:budget=64"), "scope", 370, 24),
              (Values{"head", "layer", "shared"}));
}

TEST(StripWords, SayFromWhichValueTheAnswerIsRight) {
    const auto known = std::make_shared<const LaneAnswer>();
    const auto words = [&](const std::string& marks) {
        std::vector<StripCell> cells;
        for (const char c : marks)
            cells.push_back({std::to_string(16 * (cells.size() + 1)), "", c == '?' ? nullptr : known,
                             c == '+'   ? Mark::right
                             : c == '-' ? Mark::wrong
                                        : Mark::none});
        return strip_words("budget", cells, true);
    };
    EXPECT_EQ(words("--?-"), "budget 16 to 64: 3 of 4 tried");
    EXPECT_EQ(words("----"), "budget 16 to 64: never right");
    EXPECT_EQ(words("++++"), "budget 16 to 64: always right");
    EXPECT_EQ(words("--++"), "budget 16 to 64: right from 48");
    EXPECT_EQ(words("---+"), "budget 16 to 64: right only where nothing is evicted");
    EXPECT_EQ(words("+-++"), "budget 16 to 64: right with 3 of 4");
    EXPECT_EQ(words("++--"), "budget 16 to 64: right with 2 of 4");
}

/// A value with which a lane cannot run says nothing about the others.
TEST(StripWords, LeaveOutWhatGaveNoAnswer) {
    const auto known = std::make_shared<const LaneAnswer>();
    auto failed = std::make_shared<LaneAnswer>();
    failed->failure = "no room";
    std::vector<StripCell> cells = {{"16", "", failed, Mark::none},
                                    {"32", "", known, Mark::wrong},
                                    {"48", "", known, Mark::right},
                                    {"64", "", known, Mark::right}};
    EXPECT_EQ(strip_words("budget", cells, true), "budget 32 to 64: right from 48");
    for (StripCell& cell : cells) cell.answer = failed, cell.mark = Mark::none;
    EXPECT_EQ(strip_words("budget", cells, true), "budget 16 to 64: this lane gives no answer");
}

class StripsOfTheGate : public testing::LiveRun {
  protected:
    StripsOfTheGate() {
        app.run.lane_editor.reset(
            {parse_lane_spec("full"), parse_lane_spec("h2o:budget=64"), parse_lane_spec("tova:budget=64")},
            false);
        run_action(app, "open " + (reference::source_folder() / "assets/prompts/garden-gate.txt").string());
        settle();
        run_action(app, "strips budget");
        settle();
    }
};

/// Returns what `keyhole decode` writes with these lanes, up to the end of the sentence.
Values decoded(const Values& specs, const std::filesystem::path& folder) {
    std::string lanes;
    for (const std::string& spec : specs) lanes += fmt::format(" --lane '{}'", spec);
    const std::string file = (folder / "decoded.json").string();
    const std::string command = fmt::format(
        "'{}' decode --prompt-file '{}' --model '{}' --tokens 24 --json{} > '{}' 2>/dev/null",
        reference::built("keyhole"), (reference::source_folder() / "assets/prompts/garden-gate.txt").string(),
        testing::kModel, lanes, file);
    EXPECT_EQ(std::system(command.c_str()), 0);
    nlohmann::json json;
    std::ifstream(file) >> json;
    Values texts;
    for (const auto& lane : json["lanes"]) {
        const std::string text = lane["text"];
        texts.push_back(text.substr(0, text.find_first_of(".\n")));
    }
    return texts;
}

TEST_F(StripsOfTheGate, AnswerAsDecodeDoesWithTheSameBudgets) {
    const std::uint64_t run = app.run.history.run().id;
    const int last_row = app.run.last_row();
    EXPECT_TRUE(app.strips.of(0).cells.empty()) << "a full cache has no budget";
    Values specs, texts;
    for (const int lane : {1, 2}) {
        const AnswerStrip& strip = app.strips.of(lane);
        ASSERT_EQ(strip.cells.size(), 19u);
        EXPECT_EQ(strip.cells[to_index(strip.now)].value, "64");
        for (const StripCell& cell : strip.cells) {
            ASSERT_NE(cell.answer, nullptr) << cell.spec;
            EXPECT_EQ(cell.answer->failure, "");
            EXPECT_EQ(cell.mark, answer_holds(cell.answer->text, "4821") ? Mark::right : Mark::wrong);
            specs.push_back(cell.spec);
            texts.push_back(cell.answer->text);
        }
        EXPECT_EQ(strip.cells.back().mark, Mark::right) << "nothing is evicted";
        EXPECT_EQ(strip.cells[to_index(strip.now)].answer->text,
                  shown_answers(app)[to_index(lane)].answer.text);
    }
    const auto folder = std::filesystem::temp_directory_path() / fmt::format("keyhole-strips-{}", getpid());
    std::filesystem::create_directories(folder);
    EXPECT_EQ(texts, decoded(specs, folder));
    std::filesystem::remove_all(folder);
    EXPECT_EQ(app.strips.of(1).cells[to_index(app.strips.of(1).now)].mark, Mark::wrong);
    EXPECT_EQ(app.strips.of(2).cells[to_index(app.strips.of(2).now)].mark, Mark::right);
    EXPECT_EQ(app.run.history.run().id, run) << "the run does not see it";
    EXPECT_EQ(app.run.last_row(), last_row);
}

/// Lanes are tried together. One that cannot run, or that knows the text ahead whatever its name, stops no
/// other.
TEST_F(StripsOfTheGate, OneLaneThatCannotRunStopsNoOther) {
    run_action(app, "follow on");
    run_action(app, "lane 2 h2o:budget=200,protect=0..60");
    run_action(app, "add best=oracle:budget=64");
    run_action(app, "run.restart");
    settle();
    EXPECT_EQ(app.strips.of(1).words, "budget 16 to 394: right only where nothing is evicted");
    const AnswerStrip& some = app.strips.of(2);
    EXPECT_NE(some.cells.front().answer->failure, "") << "61 tokens are protected, and the budget is 16";
    EXPECT_EQ(some.cells.front().mark, Mark::none);
    EXPECT_EQ(some.cells.back().mark, Mark::right) << some.words;
    EXPECT_EQ(app.strips.of(3).cells.back().mark, Mark::right) << app.strips.of(3).words;
}

TEST_F(StripsOfTheGate, AClickGivesTheLaneTheValueAndNothingIsComputedTwice) {
    const std::vector<StripCell> before = app.strips.of(1).cells;
    run_action(app, "strips.take 1 320");
    EXPECT_EQ(format_lane_spec(app.run.lane_editor.lanes()[1]), "h2o:budget=320");
    EXPECT_EQ(app.view.lane, 1);
    settle();
    const AnswerStrip& after = app.strips.of(1);
    EXPECT_EQ(after.cells[to_index(after.now)].value, "320");
    ASSERT_EQ(after.cells.size(), before.size());
    for (std::size_t i = 0; i < before.size(); ++i)
        EXPECT_EQ(after.cells[i].answer, before[i].answer) << before[i].value << ": the same object";
    EXPECT_THROW(run_action(app, "strips.take 9 64"), Error);
    EXPECT_THROW(run_action(app, "strips nothing"), Error);
}

TEST_F(StripsOfTheGate, TryAnotherOptionAndWaitWhileTheRunGoesOn) {
    run_action(app, "strips alpha");
    app.refresh();
    run_action(app, "step 2");
    settle();
    EXPECT_TRUE(app.strips.of(0).cells.empty());
    const AnswerStrip& strip = app.strips.of(2);
    ASSERT_EQ(strip.cells.size(), 13u);
    EXPECT_EQ(strip.now, 0) << "TOVA forgets all: alpha 0";
    EXPECT_EQ(strip.cells[0].mark, Mark::right);
    EXPECT_TRUE(std::ranges::all_of(strip.cells, [](const StripCell& c) { return c.answer != nullptr; }));
    run_action(app, "strips off");
    settle();
    EXPECT_TRUE(app.strips.of(2).cells.empty());
}

TEST(AnswerBounds, OneFloorAndOneCeilingABudget) {
    std::vector<LaneSpec> lanes;
    for (const char* spec :
         {"full", "h2o:budget=64", "tova:budget=64", "h2o:budget=32", "quest:read=48", "h2o:budget=99"})
        lanes.push_back(parse_lane_spec(spec));
    Values names;
    for (const AnswerBound& bound : answer_bounds(lanes)) {
        names.push_back(bound.name);
        EXPECT_TRUE(bound.name.ends_with("budget=" + bound.budget)) << bound.budget;
        EXPECT_EQ(bound.cells.size(), bound.is_ceiling ? 1u : 3u);
        EXPECT_EQ(bound.cells.back().spec, bound.name + (bound.is_ceiling ? "" : ",seed=3"));
    }
    EXPECT_EQ(names, (Values{"random:budget=64", "oracle:budget=64", "random:budget=32", "oracle:budget=32",
                             "random:budget=48", "oracle:budget=48"}))
        << "of the first three budgets";
}

TEST_F(StripsOfTheGate, AFloorAndACeilingStandBelowTheLanes) {
    EXPECT_TRUE(app.strips.bounds().empty());
    run_action(app, "strips off");
    run_action(app, "answers.bounds on");
    settle();
    const std::vector<AnswerBound>& bounds = app.strips.bounds();
    ASSERT_EQ(bounds.size(), 2u);
    Values specs, texts;
    int n_right = 0;
    for (const StripCell& cell : bounds[0].cells) {
        ASSERT_NE(cell.answer, nullptr) << cell.spec;
        specs.push_back(cell.spec);
        texts.push_back(cell.answer->text);
        n_right += answer_holds(cell.answer->text, "4821");
    }
    const reference::TempFolder folder("answer-bounds");
    EXPECT_EQ(texts, decoded(specs, folder.path()));
    EXPECT_EQ(bounds[0].words(true), fmt::format("{} of 3 right", n_right));
    const std::vector<std::string> shares = {"0 and 56", "6 and 79", "21 and 94", "44 and 100"};
    EXPECT_NE(bounds[0].interval_words().find("between " + shares.at(to_index(n_right)) + " %"),
              std::string::npos)
        << bounds[0].interval_words();
    EXPECT_EQ(AnswerBound{}.interval_words(), "");
    ASSERT_NE(bounds[1].cells[0].answer, nullptr);
    EXPECT_EQ(bounds[1].cells[0].answer->failure, "") << "it reads a full lane's words";
    EXPECT_EQ(bounds[1].words(true), "1 of 1 right");
    EXPECT_TRUE(app.strips.of(1).cells.empty()) << "strips are off";
    run_action(app, "answers.bounds off");
    settle();
    EXPECT_TRUE(app.strips.bounds().empty());
}

/// Another prompt asks anew, and tokens that were evicted by hand are in no copy.
TEST_F(StripsOfTheGate, ForgetWhatIsOfAnotherRun) {
    run_action(app, "evict 1 2");
    settle();
    EXPECT_TRUE(app.strips.of(1).cells.empty());
    run_action(app, "prompt The code of the gate is 7359. What is the code of the gate?");
    settle();
    ASSERT_FALSE(app.strips.of(1).cells.empty());
    for (const StripCell& cell : app.strips.of(1).cells)
        EXPECT_EQ(cell.mark,
                  cell.answer->tokens == shown_answers(app)[0].answer.tokens ? Mark::right : Mark::wrong)
            << "the right answer is not known: compared with lane 0";
}

}  // namespace
}  // namespace keyhole::test_answer_strips
