// What eval and sweep say of several lanes: names, bytes, the lane that they are compared with, questions
// that come after the eviction, and answers of several machines.
#include "app/study/eval_report.h"
#include "app/study/suite_page.h"
#include "app/study/sweep_plot.h"
#include "engine/eval/answer_file.h"
#include "tests/app/program_run.h"
#include "tests/reference/source_folder.h"
#include "tests/reference/tiny_model.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <map>

namespace keyhole::test_study_commands {
namespace {

class StudyCommands : public testing::ProgramRun {
  protected:
    void SetUp() override {
        ProgramRun::SetUp();
        std::ofstream(path("text.txt")) << reference::random_text(400, 3);
    }
    std::string model() const { return " --model '" + tiny_.folder().string() + "'"; }
    std::string on_text() const { return model() + " --text '" + path("text.txt") + "' --context 40"; }
    std::string on_needles() const { return model() + " --task needle --context 400"; }
    std::string out(const std::string& name) const { return " --out '" + path(name) + "'"; }
    nlohmann::json json() const {
        const std::size_t begin = output_.find('{'), end = output_.rfind('}');  // notes stand around it
        return nlohmann::json::parse(output_.substr(begin, end + 1 - begin));
    }
    /// Returns the fields of one column of a CSV file, by its header.
    std::vector<std::string> column(const std::string& file, const std::string& name) const {
        std::istringstream in(read(file));
        std::vector<std::string> values;
        std::ptrdiff_t at = -1;
        for (std::string line; std::getline(in, line);) {
            const std::vector<std::string> fields = split_csv(line);
            if (at < 0)
                at = std::find(fields.begin(), fields.end(), name) - fields.begin();
            else
                values.push_back(fields.at(static_cast<std::size_t>(at)));
        }
        return values;
    }
    /// Expects the floor of window:budget=64 over all answers of a file, and a verdict on that lane.
    void expect_joined_floor(const std::string& text, const std::string& file,
                             const std::string& what) const {
        const auto lanes = column(file, "lane"), right = column(file, "right");
        int n = 0, n_right = 0;
        for (std::size_t i = 0; i < lanes.size(); ++i) {
            if (!lanes[i].starts_with("random:budget=64")) continue;
            ++n;
            n_right += right[i] == "1" ? 1 : 0;
        }
        const std::string line = fmt::format(
            "{} together, {} questions\nfloor random:budget=64, mean of 3 seeds: {:.1f} % right (", what,
            n / 3, 100.0 * n_right / n);
        const std::size_t at = text.find(line);
        ASSERT_NE(at, std::string::npos) << line << text;
        EXPECT_NE(text.find("  window:budget=64: ", at), std::string::npos) << text;
        EXPECT_NE(text.find(" random (", at), std::string::npos) << text;
    }
    reference::TinyModel tiny_{reference::TinyShape{}};
};

Outcome answer_of(bool right, double nats, double held) {
    Outcome outcome{nats, 2, 4, right};
    outcome.held = held;
    return outcome;
}

TEST(ScoreTable, SortsNamesBytesAndReference) {
    QuestionSet set;
    set.name = "needle";
    set.description = "two questions";
    set.is_task = true;
    const std::vector<std::vector<Outcome>> outcomes = {
        {answer_of(true, 1, 1), answer_of(true, 1, 1)},
        {answer_of(false, 5, 0), answer_of(false, 7, 0.5)},
        {answer_of(true, 2, 1), answer_of(false, 4, 0.5)},
    };
    ReportLanes lanes{{"full", "a name of its own", "tova:budget=9"}, {}, {4000, 1000, 1500}, 2, "right"};
    std::vector<LaneScore> scores;
    for (const std::vector<Outcome>& of_lane : outcomes)
        scores.push_back(score_lane(set, of_lane, outcomes[lanes.against]));
    EXPECT_DOUBLE_EQ(scores[1].held, 0.25);
    const std::string table = score_table(set, lanes, scores);
    EXPECT_NE(table.find("Differences are to tova:budget=9.\n"), std::string::npos) << table;
    const std::size_t full = table.find("\nfull "), named = table.find("\na name of its own "),
                      tova = table.find("\ntova:budget=9 ");
    EXPECT_LT(full, tova) << table;
    EXPECT_LT(tova, named) << table;
    // KV kB, held %, right %; nats a token: (5 + 7) / 2 / 2 = 3, of tova (2 + 4) / 2 / 2 = 1.5.
    const std::string line = table.substr(named + 1, table.find('\n', named + 1) - named - 1);
    EXPECT_NE(line.find("a name of its own       1.0     25     0.0"), std::string::npos) << line;
    EXPECT_NE(line.find("   3.000 "), std::string::npos) << line;
    EXPECT_NE(line.find("   +1.500 "), std::string::npos) << line;
    EXPECT_NE(line.find("    -50.0 "), std::string::npos) << line;
    // Nats differ by 1.5 in both pairs: no width.
    EXPECT_NE(line.find("+1.500 .. +1.500"), std::string::npos) << line;
    const std::string reference = table.substr(tova + 1, table.find('\n', tova + 1) - tova - 1);
    EXPECT_EQ(reference.find('+'), std::string::npos) << "no difference to itself: " << reference;
    scores[0].nats_difference.value = scores[0].nats_difference.interval.low = -0.0004;
    scores[0].accuracy_difference.value = -0.0004;
    const std::string rounded = score_table(set, lanes, scores);
    EXPECT_EQ(rounded.find("-0.0"), std::string::npos) << rounded;
    lanes.sort = "bytes";
    EXPECT_EQ(line_order(lanes, scores), (std::vector<std::size_t>{1, 2, 0}));
    lanes.sort = "nats";
    EXPECT_EQ(line_order(lanes, scores), (std::vector<std::size_t>{0, 2, 1}));
    lanes.sort.clear();
    EXPECT_EQ(line_order(lanes, scores), (std::vector<std::size_t>{0, 1, 2}));
}

/// Where another lane answers, the way to ask is not what is wrong.
TEST(ScoreTable, SaysWhatToTryWhereNoLaneAnswers) {
    QuestionSet set;
    set.name = "needle";
    set.is_task = true;
    const std::vector<Outcome> wrong = {answer_of(false, 5, 0)}, right = {answer_of(true, 1, 1)};
    const ReportLanes lanes{{"h2o:budget=9", "full"}};
    const std::vector<LaneScore> none = {score_lane(wrong, wrong), score_lane(wrong, wrong)},
                                 one = {score_lane(wrong, wrong), score_lane(right, wrong)};
    EXPECT_NE(reference_fails_text(set, lanes, none, "question").find("try --ask statement"),
              std::string::npos);
    EXPECT_EQ(reference_fails_text(set, lanes, one, "question"), "");
}

TEST_F(StudyCommands, LanesHaveNamesEverywhere) {
    ASSERT_EQ(
        run("sweep" + on_text() + " --samples 3 --bounds 0 --lane all=full --lane 'few tokens=h2o:budget=4'" +
            out("s") + " --against 'few tokens' --sort bytes"),
        0)
        << output_;
    EXPECT_NE(output_.find("\nfew tokens = h2o:budget=4\n"), std::string::npos) << output_;
    EXPECT_NE(output_.find("Differences are to few tokens."), std::string::npos) << output_;
    EXPECT_LT(output_.rfind("\nfew tokens "), output_.rfind("\nall ")) << "fewest bytes first: " << output_;
    EXPECT_EQ(column("s/table.csv", "lane"), (std::vector<std::string>{"all", "few tokens"}));
    EXPECT_EQ(column("s/table.csv", "spec"), (std::vector<std::string>{"full", "h2o:budget=4"}));
    const auto differences = column("s/table.csv", "nats_difference");
    EXPECT_FALSE(differences[0].empty());
    EXPECT_TRUE(differences[1].empty()) << "no difference to itself";
    EXPECT_NE(read("s/text.svg").find(">few tokens<"), std::string::npos);
    EXPECT_NE(read("s/text.svg").find("times few tokens"), std::string::npos) << "the reference by name";
    // A plot of perplexity against the bytes of the two lanes.
    EXPECT_NE(read("s/text-perplexity-memory.svg").find("bytes of K and V"), std::string::npos);
    for (const auto& [against, words] : std::map<std::string, std::string>{
             {"nobody", "there is no lane 'nobody'; lanes are all, few tokens"},
             {"3", "there is no lane '3'"}}) {
        EXPECT_EQ(run("eval" + on_text() +
                      " --bounds 0 --lane all=full --lane 'few tokens=h2o:budget=4' --against " + against),
                  2);
        EXPECT_NE(output_.find(words), std::string::npos) << output_;
    }
    EXPECT_EQ(run("eval" + on_text() + " --lane a=full --lane a=h2o"), 2);
    EXPECT_NE(output_.find("two lanes are named 'a'"), std::string::npos) << output_;
    EXPECT_EQ(run("sweep" + on_text() + " --lane full" + out("t")), 2);
    EXPECT_NE(output_.find("there is one lane, and nothing varies"), std::string::npos) << output_;
}

/// Bytes are those of both K and V, in every KV head: 2 layers x 2 KV heads x 2 x 8 floats x tokens.
TEST_F(StudyCommands, TablesHaveTheBytesOfALane) {
    ASSERT_EQ(run("eval" + on_text() +
                  " --samples 2 --json --lane full:kv_dtype=f32"
                  " --lane h2o:budget=4,kv_dtype=f32 --against 2"),
              0)
        << output_;
    const nlohmann::json lanes = json().at("lanes");
    const double a_token = lanes[0].at("kv_bytes").get<double>() / 40;
    EXPECT_EQ(lanes[1].at("kv_bytes").get<double>(), 4 * a_token);
    EXPECT_EQ(json().at("against"), "h2o:budget=4,kv_dtype=f32");
    EXPECT_TRUE(lanes[1].at("nats_difference_interval").is_null());
    EXPECT_FALSE(lanes[0].at("nats_difference_interval").is_null());
}

TEST_F(StudyCommands, AnswersSayWhereTheAnswerWas) {
    ASSERT_EQ(run("eval" + model() +
                  " --task needle --samples 3 --context 400 --bounds 0 --lane full"
                  " --lane window:budget=16" +
                  out("e")),
              0)
        << output_;
    EXPECT_NE(output_.find("held %"), std::string::npos) << output_;
    const auto lanes = column("e/answers.csv", "lane"), distances = column("e/answers.csv", "distance"),
               depths = column("e/answers.csv", "depth"), held = column("e/answers.csv", "held");
    ASSERT_EQ(lanes.size(), 6u);
    for (std::size_t i = 0; i < lanes.size(); ++i) {
        EXPECT_GT(std::stoi(distances[i]), 0);
        EXPECT_LT(std::stod(depths[i]), 1);
        if (lanes[i] == "full") {
            EXPECT_EQ(held[i], "1");
        }
        // A byte is a token: the question alone is longer than the window.
        else {
            EXPECT_EQ(held[i], "0");
        }
    }
    // The same command goes on, and asks nothing anew.
    const std::string before = read("e/answers.csv");
    ASSERT_EQ(run("eval" + model() +
                  " --task needle --samples 3 --context 400 --bounds 0 --lane full"
                  " --lane window:budget=16" +
                  out("e")),
              0);
    EXPECT_EQ(read("e/answers.csv"), before);
}

TEST_F(StudyCommands, AsksBeforeAndAfterTheEviction) {
    ASSERT_EQ(run("eval" + model() +
                  " --task needle --samples 3 --context 400 --ask-when both --lane full"
                  " --lane snapkv:budget=40"),
              0)
        << output_;
    EXPECT_NE(output_.find("\nneedle: 3 questions"), std::string::npos) << output_;
    EXPECT_NE(output_.find("\nneedle-after: 3 questions"), std::string::npos) << output_;
    EXPECT_NE(output_.find("needle: what it costs that a lane evicts before it sees the question"),
              std::string::npos)
        << output_;
    // The full cache answers both ways alike.
    const std::size_t at = output_.rfind("\nfull ");
    EXPECT_NE(output_.substr(at, output_.find('\n', at + 1) - at).find("+0.0 "), std::string::npos)
        << output_;
    EXPECT_EQ(run("eval" + on_text() + " --ask-when after"), 2);
    EXPECT_NE(output_.find("--ask-when and --chat are for tasks"), std::string::npos) << output_;
}

/// A text that is read token by token: the budget works in every row, and a window of 16 holds what 16 tokens
/// can hold. With a budget of all the answer is the one after a prompt.
TEST_F(StudyCommands, ReadsATextAsItsOwn) {
    const std::string eval = "eval" + on_needles() + " --samples 2 --lane full --lane window:budget=16";
    ASSERT_EQ(run(eval + " --json" + out("before")), 0) << output_;
    const nlohmann::json before = json().at("lanes");
    ASSERT_EQ(run(eval + " --ask-when decoding --json" + out("decoding")), 0) << output_;
    const nlohmann::json lanes = json().at("lanes");
    EXPECT_EQ(lanes[0].at("task"), "needle-decoding");
    EXPECT_NEAR(lanes[0].at("nats_per_token").get<double>(), before[0].at("nats_per_token").get<double>(),
                1e-3);
    EXPECT_EQ(lanes[0].at("held"), 1.0);
    EXPECT_EQ(lanes[1].at("held"), 0.0);
    // The prompt is whole before a lane evicts; what is read token by token never is.
    EXPECT_EQ(before[1].at("kv_peak_bytes"), before[0].at("kv_bytes"));
    EXPECT_EQ(lanes[1].at("kv_peak_bytes").get<double>(), lanes[1].at("kv_bytes").get<double>() * 17 / 16);
    EXPECT_NE(lanes[1].at("nats_per_token"), before[1].at("nats_per_token"))
        << "rows of the text had a window, too";
    for (const std::string& depth : column("decoding/answers.csv", "depth")) EXPECT_LT(std::stod(depth), 1);
    // A head's share of the answer is taken at the end of the text, too.
    ASSERT_EQ(run(eval + " --ask-when decoding --by head" + out("decoding")), 0) << output_;
    const auto of_lane = column("decoding/by_head.csv", "lane"),
               held = column("decoding/by_head.csv", "held");
    ASSERT_EQ(held.size(), 16u);
    for (std::size_t i = 0; i < held.size(); ++i) EXPECT_EQ(held[i], of_lane[i] == "full" ? "1" : "0") << i;
    EXPECT_EQ(run("eval" + on_needles() + " --ask-when decoding --lane h2o"), 2);
    EXPECT_NE(output_.find("give it in tokens"), std::string::npos) << output_;
}

TEST_F(StudyCommands, SearchCountsTheBytesThatEvalCounts) {
    const std::string lane = " --lane h2o:budget=16,recent=4,evict=prompt", all = " --samples 2 --json";
    for (const std::string when : {"before", "decoding"}) {
        const std::string asked = on_needles() + " --ask-when " + when + all;
        ASSERT_EQ(run("eval" + asked + lane), 0) << output_;
        const nlohmann::json bytes = json().at("lanes").at(0).at("kv_bytes");
        ASSERT_EQ(run("search" + asked + lane + " --vary recent=2..8 --tries 2" + out(when)), 0) << output_;
        EXPECT_EQ(json().at("held_out").at("lanes").at(1).at("kv_bytes"), bytes) << when;
    }
}

TEST_F(StudyCommands, DataMayHaveAContext) {
    using Json = nlohmann::json;
    {
        std::ofstream file(path("ask.jsonl"));
        for (const char* question : {"the bird", "the hare"})
            file << Json{{"context", "once upon a time there was a bird that sang to a hare all day"},
                         {"prompt", question},
                         {"choices", {"sang", "slept well"}},
                         {"answer", 0}}
                 << "\n";
    }
    const std::string eval = "eval" + model() + " --data '" + path("ask.jsonl") + "' --json --lane full" +
                             " --lane window:budget=8 --ask-when ";
    ASSERT_EQ(run(eval + "before"), 0) << output_;
    const nlohmann::json before = json().at("lanes");
    ASSERT_EQ(run(eval + "after"), 0) << output_;
    const nlohmann::json after = json().at("lanes");
    EXPECT_EQ(after[0].at("task"), "ask-after");
    EXPECT_NEAR(after[0].at("nats_per_token").get<double>(), before[0].at("nats_per_token").get<double>(),
                1e-3);
    std::ofstream(path("bare.jsonl")) << Json{{"prompt", "the bird"}, {"references", {"sang"}}} << "\n";
    EXPECT_EQ(run("eval" + model() + " --data '" + path("bare.jsonl") + "' --ask-when after"), 2);
    EXPECT_NE(output_.find("bare.jsonl:1: context: --ask-when after evicts the text"), std::string::npos)
        << output_;
}

/// Means over tasks; the least memory of a preset that keeps nine tenths of the reference's mean.
TEST(Suite, FindsTheLeastMemoryThatKeepsMostOfTheReference) {
    const auto share = [](double value) {
        LaneScore score;
        score.accuracy.value = value;
        return score;
    };
    const std::vector<SuiteTask> tasks = {
        {"needle", {share(1), share(0.95), share(0.9), share(0.5)}, ""},
        {"list", {share(0.8), share(0.75), share(0.7), share(0.5)}, ""},
        {"fact", {}, "a question does not fit"},
    };
    const ReportLanes lanes{{"full", "h2o:budget=64", "h2o:budget=32", "tova:budget=32"},
                            {parse_lane_spec("full"), parse_lane_spec("h2o:budget=64"),
                             parse_lane_spec("h2o:budget=32"), parse_lane_spec("tova:budget=32")},
                            {4000, 2000, 1000, 1000}};
    EXPECT_DOUBLE_EQ(suite_mean(tasks, 2), 0.8);
    // 0.9 x 0.9 = 0.81: 64 tokens keep 0.85, 32 keep 0.8, tova's 0.5.
    EXPECT_EQ(smallest_that_keep(lanes, tasks, 0.9), std::vector<std::size_t>{1});
    EXPECT_EQ(smallest_that_keep(lanes, tasks, 0.5), (std::vector<std::size_t>{2, 3}));
    EXPECT_TRUE(smallest_that_keep(lanes, tasks, 1).empty());
    const std::string text = suite_text(lanes, tasks);
    EXPECT_NE(text.find("Least memory that keeps 90 % of full (4.0 kB): h2o:budget=64 (2.0 kB)."),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("skipped: a question does not fit"), std::string::npos) << text;
    const std::string page = suite_page(lanes, tasks, "A & B", {}, "a < b\n");
    EXPECT_NE(page.find("<h1>A &amp; B</h1>"), std::string::npos);
    EXPECT_NE(page.find("<pre>a &lt; b\n</pre>"), std::string::npos);
}

TEST(Suite, SaysTheLeastMemoryOfOneTable) {
    QuestionSet set;
    set.is_task = true;
    ReportLanes lanes{
        {"full", "a", "b"},
        {parse_lane_spec("full"), parse_lane_spec("tova:budget=64"), parse_lane_spec("tova:budget=32")},
        {4000, 2000, 1000},
        0,
        {}};
    std::vector<LaneScore> scores(3);
    for (const auto& [i, share] : {std::pair(0, 0.9), std::pair(1, 0.85), std::pair(2, 0.8)})
        scores[static_cast<std::size_t>(i)].accuracy.value = share;
    EXPECT_EQ(least_memory_text(set, lanes, scores),
              "Least memory that keeps 90 % of full (4.0 kB): a (2.0 kB).\n");
    scores[0].accuracy.value = 0;
    EXPECT_EQ(least_memory_text(set, lanes, scores), "");
    set.is_task = false;
    scores[0].accuracy.value = 0.9;
    EXPECT_EQ(least_memory_text(set, lanes, scores), "");
}

// A cell of a map has few questions: the verdict is over those of all cells.
TEST_F(StudyCommands, AMapHasOneFloorForAllCells) {
    const std::string map = "sweep" + model() + " --task needle --map --lengths 300,400 --depths 0,100" +
                            " --samples 2 --lane full --lane window:budget=64" + out("m");
    ASSERT_EQ(run(map), 0) << output_;
    expect_joined_floor(output_, "m/answers.csv", ": all cells");
    ASSERT_EQ(run(map + " --json"), 0) << output_;
    const nlohmann::json floors = json().at("floors");
    ASSERT_EQ(floors.size(), 1u) << floors;
    EXPECT_EQ(floors[0].at("lanes")[0].at("spec"), "window:budget=64");
    ASSERT_EQ(run(map + " --bounds 0"), 0) << output_;
    EXPECT_EQ(output_.find("random"), std::string::npos) << output_;
}

TEST_F(StudyCommands, ASuiteIsOnePage) {
    const std::string suite = "eval" + model() + " --suite --samples 1 --context 400 --lane full" +
                              " --lane window:budget=64" + out("p");
    ASSERT_EQ(run(suite), 0) << output_;
    for (const char* task : {"<td>ruler-tracking</td>", "<td>instructions</td>"})
        EXPECT_NE(read("p/suite.html").find(task), std::string::npos) << task << output_;
    EXPECT_NE(output_.find("skipped: "), std::string::npos) << "bytes as tokens: some tasks do not fit";
    for (const std::string& text : {output_, read("p/suite.html")})
        expect_joined_floor(text, "p/answers.csv", "all tasks");
    const std::string before = read("p/answers.csv");
    ASSERT_EQ(run(suite), 0) << output_;
    EXPECT_EQ(read("p/answers.csv"), before);
    EXPECT_EQ(run("eval" + model() + " --suite"), 2);
    EXPECT_NE(output_.find("give --out FOLDER with it"), std::string::npos) << output_;
}

/// Two shards together are the whole, answer by answer; a lost one is named.
/// With the whole cache a head loses nothing; with a window it holds what the window has, and attends to no
/// more. What eviction costs by head is taken from an attribution in the same folder.
TEST_F(StudyCommands, EvalSaysWhatHeadsDo) {
    const std::string eval =
        "eval" + on_needles() + " --samples 3 --lane full --lane window:budget=16 --by head";
    ASSERT_EQ(run(eval + out("a")), 0) << output_;
    EXPECT_NE(output_.find("heads that attend to the answer in full attention most"), std::string::npos)
        << output_;
    // A map of each measure: 2 layers by 4 heads, a panel a lane, and each cell says which head it is.
    for (const char* measure :
         {"held", "attention", "full_attention", "lost_mass", "top_recall", "output_error"}) {
        const std::string map = read(fmt::format("a/by_head_needle_{}.svg", measure));
        EXPECT_NE(map.find("L1.H3, which reads L1.G"), std::string::npos) << measure;
        EXPECT_NE(map.find(">window:budget=16<"), std::string::npos) << measure;
    }
    constexpr int kHeads = 2 * 4;  // of the tiny model
    double full = 0, kept = 0, most_lost = 0;
    int n = 0;
    for (const std::string& line : lines("a/by_head.csv")) {
        const std::vector<std::string> f = split_csv(line);
        ASSERT_EQ(f.size(), 14u) << line;
        if (f[1] == "full") {
            ++n;
            EXPECT_EQ(f[6], "1") << line;
            EXPECT_NEAR(std::stod(f[7]), std::stod(f[8]), 1e-4) << line;
            EXPECT_NEAR(std::stod(f[9]), 0, 1e-5) << line;
            EXPECT_EQ(f[10], "1") << line;
            EXPECT_NEAR(std::stod(f[11]), 0, 1e-5) << line;
            full += std::stod(f[7]);
        } else if (f[1] == "window:budget=16") {
            kept += std::stod(f[7]);
            most_lost = std::max(most_lost, std::stod(f[9]));
            EXPECT_LT(std::stod(f[6]), 1) << line;
            EXPECT_LT(std::stod(f[10]), 1) << line;
            EXPECT_GT(std::stod(f[11]), 0) << line;
            EXPECT_EQ(f[12], "") << line;
        }
    }
    EXPECT_EQ(n, kHeads);
    EXPECT_GT(full, 2 * kept);
    EXPECT_GT(most_lost, 0.2);
    ASSERT_EQ(run("attribute" + on_needles() + " --samples 3 --lane window:budget=16" + out("a")), 0)
        << output_;
    ASSERT_EQ(run(eval + " --json" + out("a")), 0) << output_;
    const nlohmann::json heads = json().at("heads");
    ASSERT_EQ(heads.size(), std::size_t{2 * kHeads});
    EXPECT_FALSE(heads[0].contains("nats"));
    EXPECT_TRUE(heads.back().contains("nats"));
    // Of other questions, of fewer of them, and by an earlier version, which did not note its questions.
    const auto says_why = [&](const std::string& command, const std::string& why) {
        ASSERT_EQ(run(command + " --json" + out("a")), 0) << output_;
        EXPECT_FALSE(json().at("heads").back().contains("nats")) << command;
        EXPECT_NE(output_.find("no nats are taken from"), std::string::npos) << output_;
        EXPECT_NE(output_.find(why), std::string::npos) << output_;
    };
    says_why(eval + " --seed 2", "it is of other questions, or of another model");
    says_why("eval" + on_needles() + " --samples 2 --lane full --lane window:budget=16 --by head",
             "it is of 3 questions, and 2 are asked");
    nlohmann::json older = nlohmann::json::parse(read("a/attribution.json"));
    older.erase("asked");
    std::ofstream(path("a/attribution.json")) << older;
    says_why(eval, "it is of an earlier version");
}

/// A command takes away what the one before wrote and it does not.
TEST_F(StudyCommands, ResultsReplaceThoseBefore) {
    const auto there = [&](const char* file) { return std::filesystem::exists(path(file)); };
    const std::string attribute = "attribute" + on_needles() + " --samples 2 --lane h2o:budget=16";
    ASSERT_EQ(run(attribute + " --budget 200" + out("a")), 0) << output_;
    for (const char* file : {"a/lane.txt", "a/heads.json", "a/full_attention_heads.tsv", "a/headkv.json"})
        EXPECT_TRUE(there(file)) << file;
    std::ofstream(path("a/mine.txt")) << "mine";
    ASSERT_EQ(run(attribute + out("a")), 0) << output_;
    for (const char* file : {"a/lane.txt", "a/heads.json", "a/full_attention_heads.tsv", "a/headkv.json"})
        EXPECT_FALSE(there(file)) << file;
    EXPECT_TRUE(there("a/mine.txt") && there("a/answers.csv") && there("a/attribution.svg"));
    const std::string eval = "eval" + model() + " --context 400 --samples 1 --lane h2o:budget=16 --bounds 0";
    ASSERT_EQ(run(eval + " --task needle,fact --by head" + out("a")), 0) << output_;
    EXPECT_TRUE(there("a/by_head_needle_held.svg") && there("a/by_head_fact_held.svg"));
    ASSERT_EQ(run(eval + " --task fact --by span" + out("a")), 0) << output_;
    EXPECT_TRUE(there("a/by_head_needle_held.svg")) << "it shows something else";
    ASSERT_EQ(run(eval + " --task fact --by head" + out("a")), 0) << output_;
    EXPECT_FALSE(there("a/by_head_needle_held.svg"));
    EXPECT_TRUE(there("a/by_head_fact_held.svg") && there("a/by_span.csv"));
    // A folder of an earlier version has no list.
    std::filesystem::remove(path("a/eval.json"));
    ASSERT_EQ(run(eval + " --task needle --by head" + out("a")), 0) << output_;
    EXPECT_FALSE(there("a/by_head_fact_held.svg"));
}

/// What another program wrote stays, and is named before any question is asked.
TEST_F(StudyCommands, ResultsDoNotReplaceForeignFiles) {
    const std::string lane = " --samples 1 --lane h2o:budget=16", eval = "eval" + on_needles() + lane;
    int n = 0;
    for (const auto& [command, file] : std::vector<std::pair<std::string, std::string>>{
             {"eval" + model() + lane + " --suite --context 400", "suite.html"},
             {eval + " --by head", "by_head.csv"},
             {eval + " --by head", "by_head_needle_held.png"},
             {eval + " --by span", "by_span.csv"},
             {eval + " --by span", "eval.json"},
             {"attribute" + on_needles() + lane + " --budget 200", "config.json"},
             {"attribute" + on_needles() + lane, "attribution.json"},
             {"search" + on_needles() + lane + " --vary recent=2..8 --tries 2", "lane.txt"},
             {"search" + on_needles() + lane + " --vary recent=2..8 --tries 2", "search.json"}}) {
        const std::string folder = fmt::format("f{}", n++);
        std::filesystem::create_directory(path(folder));
        std::ofstream(path(folder + "/" + file)) << "[]";
        EXPECT_NE(run(command + out(folder)), 0) << command;
        EXPECT_NE(output_.find(file), std::string::npos) << output_;
        EXPECT_EQ(read(folder + "/" + file), "[]") << command;
        EXPECT_FALSE(std::filesystem::exists(path(folder + "/answers.csv"))) << command;
    }
}

/// A calibration file or a chat template of the same name says another thing: the lanes are asked again.
TEST_F(StudyCommands, AnswersAreOfTheTokenizerThatAsked) {
    const auto set_template = [&](const char* begin) {
        std::ofstream(tiny_.folder() / "tokenizer_config.json")
            << nlohmann::json{{"chat_template", std::string(begin) + "{{ messages[0].content }}"}};
    };
    set_template("a");
    const std::string eval = "eval" + on_needles() + " --samples 2 --lane h2o:budget=16 --bounds 0 --chat";
    ASSERT_EQ(run(eval + out("a")), 0) << output_;
    EXPECT_EQ(lines("a/answers.csv").size(), 1u + 2);
    ASSERT_EQ(run(eval + out("a")), 0) << output_;
    EXPECT_EQ(lines("a/answers.csv").size(), 1u + 2) << "nothing has changed";
    set_template("b");
    ASSERT_EQ(run(eval + out("a")), 0) << output_;
    EXPECT_EQ(lines("a/answers.csv").size(), 1u + 4);
}

/// The answers read back give the same numbers, digit by digit.
TEST_F(StudyCommands, TheSameCommandPrintsTheSame) {
    const std::string eval = "eval" + on_needles() + " --samples 3 --lane h2o:budget=16 --json" + out("a");
    ASSERT_EQ(run(eval), 0) << output_;
    const std::string first = output_;
    ASSERT_EQ(run(eval), 0) << output_;
    EXPECT_EQ(output_, first);
}

TEST_F(StudyCommands, AKeyThatChangesNoLaneIsRefused) {
    const std::string sweep = "sweep" + on_text() + " --samples 1 --bounds 0 --lane full" + out("a");
    for (const auto& [options, says] : std::vector<std::pair<std::string, std::string>>{
             {" --vary budget=16", "full keeps every token"},
             {" --lane sink:budget=4 --vary tau=1,2", "no score decides"},
             {" --lane h2o:budget=4 --vary kernel=avg:3,avg:5", "leaves its kernel open"}}) {
        EXPECT_EQ(run(sweep + options), 2) << output_;
        EXPECT_NE(output_.find("none of its values changes a lane"), std::string::npos) << output_;
        EXPECT_NE(output_.find(says), std::string::npos) << output_;
    }
    ASSERT_EQ(run(sweep + " --lane sink:budget=4 --lane keyformer:budget=4 --vary tau=1,2"), 0) << output_;
    EXPECT_NE(output_.find("keyhole: --vary tau does not change every lane. sink:budget=4: "),
              std::string::npos)
        << output_;
    ASSERT_EQ(run(sweep + " --lane keyformer:budget=4 --vary tau=1,2"), 0) << output_;
    EXPECT_EQ(output_.find("does not change every lane"), std::string::npos) << output_;
}

TEST_F(StudyCommands, WrongWordsAndFoldersAreNamed) {
    std::filesystem::create_directory(path("none"));
    for (const auto& [command, says] : std::vector<std::pair<std::string, std::string>>{
             {"attribute --by tokn",
              "--by: 'tokn' is none of head, query-head, layer, group, token (did you "
              "mean token?)"},
             {"eval --data - --job slurm" + out("j"), "--job: --data - reads standard input"},
             {"search --lane h2o --vary alpha=0..1 --text '" + path("text.txt") +
                  "' --held-out-text=- --job parallel" + out("j"),
              "--job: --held-out-text - reads standard input"},
             {"bench --layers 2", "--layers is for --shape and --paper"},
             {"bench --cublas-from 3", "--cublas-from is for --shape and --paper"},
             {"bench --shape pythia-160m --scale 3", "--scale is for --paper; give both"},
             {"eval --task recall --context 60",
              "task fact: a question does not fit into the context; make the context longer by "},
             {"merge '" + path("none") + "'" + out("j"), "none: it is no shard"}}) {
        EXPECT_NE(run(command), 0) << command;
        EXPECT_NE(output_.find(says), std::string::npos) << command << "\n" << output_;
        EXPECT_EQ(std::count(output_.begin(), output_.end(), '\n'), 1) << output_;
    }
    EXPECT_FALSE(std::filesystem::exists(path("j")));
    ASSERT_EQ(run("bench --help"), 0);
    EXPECT_NE(output_.find("--layers N "), std::string::npos) << output_;
}

TEST_F(StudyCommands, ShardsAreJoined) {
    const std::string sweep =
        "sweep" + on_text() + " --samples 5 --bounds 0 --lane full --lane h2o --vary budget=4,8";
    ASSERT_EQ(run(sweep + out("whole")), 0) << output_;
    ASSERT_EQ(run(sweep + " --shard 1/2" + out("s1")), 0) << output_;
    EXPECT_NE(output_.find("shard 1/2 is answered in"), std::string::npos) << output_;
    EXPECT_EQ(lines("s1/answers.csv").size(), 1u + 3 * 3);
    EXPECT_EQ(run("merge '" + path("s1") + "'" + out("joined")), 2);
    EXPECT_NE(output_.find("shard 2/2 is missing: keyhole sweep"), std::string::npos) << output_;
    EXPECT_NE(output_.find("--shard 2/2"), std::string::npos) << output_;
    ASSERT_EQ(run(sweep + " --shard 2/2" + out("s2")), 0) << output_;
    ASSERT_EQ(run("merge '" + path("s1") + "' '" + path("s2") + "'" + out("joined")), 0) << output_;
    EXPECT_NE(output_.find("the results: keyhole sweep"), std::string::npos) << output_;
    // The folder had those of shard 1 from above: 15 answers of 5 windows and 3 lanes in all.
    EXPECT_NE(output_.find("15 answers of 2 shards are joined in"), std::string::npos) << output_;
    EXPECT_NE(output_.find(", 6 of them new"), std::string::npos) << output_;
    ASSERT_EQ(run("merge '" + path("s1") + "' '" + path("s2") + "'" + out("joined")), 0) << output_;
    EXPECT_NE(output_.find("15 answers of 2 shards are joined in"), std::string::npos) << output_;
    EXPECT_NE(output_.find(", 0 of them new"), std::string::npos) << output_;
    ASSERT_EQ(run(sweep + out("joined")), 0) << output_;
    EXPECT_EQ(answers("joined/answers.csv"), answers("whole/answers.csv"));
    EXPECT_EQ(lines("joined/table.csv"), lines("whole/table.csv"));
    // A shard of other questions, one twice, and a folder without a shard.
    ASSERT_EQ(run("eval" + on_text() + " --samples 4 --lane full --shard 2/2" + out("s3")), 0) << output_;
    EXPECT_EQ(run("merge '" + path("s1") + "' '" + path("s3") + "'" + out("j")), 2);
    EXPECT_NE(output_.find("is no shard of the command of"), std::string::npos) << output_;
    EXPECT_EQ(run("merge '" + path("s1") + "' '" + path("s1") + "'" + out("j")), 2);
    EXPECT_NE(output_.find("are both shard 1/2"), std::string::npos) << output_;
    EXPECT_NE(run("merge '" + path("whole") + "'" + out("j")), 0);
    EXPECT_NE(output_.find("shard.json"), std::string::npos) << output_;
    EXPECT_EQ(run("eval" + on_text() + " --shard 1/2"), 2);
    EXPECT_NE(output_.find("give --out FOLDER with it"), std::string::npos) << output_;
}

/// Each command that asks questions is shared out: a lost shard is named, an altered one refused, and the
/// joined folder gives the whole's results without asking anything again.
TEST_F(StudyCommands, EveryCommandIsSharedOut) {
    std::ofstream(path("other.txt")) << reference::random_text(400, 4);
    const std::map<std::string, std::pair<std::string, std::string>> commands = {
        {"eval", {"eval" + on_text() + " --samples 4 --lane full --lane h2o:budget=4", ""}},
        {"attribute",
         {"attribute" + on_text() + " --samples 4 --lane h2o:budget=4 --by layer", "attribution.csv"}},
        {"figure", {"figure keyformer-5" + on_text() + " --samples 4 --vary damping=0.9,1", "table.csv"}},
    };
    for (const auto& [name, how] : commands) {
        const auto& [command, result] = how;
        ASSERT_EQ(run(command + out(name)), 0) << output_;
        for (const char* shard : {"1", "3"})
            ASSERT_EQ(run(command + " --shard " + shard + "/3" + out(name + shard)), 0) << output_;
        const std::string both = "merge '" + path(name + "1") + "' '" + path(name + "3") + "'";
        EXPECT_EQ(run(both + out(name + "-j")), 2) << output_;
        EXPECT_NE(output_.find("shard 2/3 is missing: keyhole " + command.substr(0, command.find(' '))),
                  std::string::npos)
            << output_;
        EXPECT_EQ(output_.find("shard 1/3 "), std::string::npos) << "only what is lost: " << output_;
        ASSERT_EQ(run(command + " --shard 2/3" + out(name + "2")), 0) << output_;
        ASSERT_EQ(run(both + " '" + path(name + "2") + "'" + out(name + "-j")), 0) << output_;
        const std::string joined = read(name + "-j/answers.csv");
        ASSERT_EQ(run(command + out(name + "-j")), 0) << output_;
        EXPECT_EQ(read(name + "-j/answers.csv"), joined) << name << ": nothing is asked again";
        const auto whole = answers(name + "/answers.csv"), parts = answers(name + "-j/answers.csv");
        EXPECT_EQ(parts, whole) << name;
        if (!result.empty()) {
            EXPECT_EQ(read(name + "-j/" + result), read(name + "/" + result)) << name;
        }
        // A job file numbers the shards itself.
        ASSERT_EQ(run(command + " --job parallel --shards 3" + out(name + "-job")), 0) << output_;
        EXPECT_NE(read(name + "-job/job.sh").find(command.substr(0, command.find(' '))), std::string::npos);
        EXPECT_FALSE(std::filesystem::exists(path(name + "-job/answers.csv")));
    }
    std::string record = read("eval2/shard.json");
    record.replace(record.find("h2o:budget=4", record.find("\"needs\"")), 12, "h2o:budget=8");
    std::ofstream(path("eval2/shard.json")) << record;
    EXPECT_NE(run("merge '" + path("eval2") + "'" + out("x")), 0);
    EXPECT_NE(output_.find("it is not that of the questions"), std::string::npos) << output_;
}

}  // namespace
}  // namespace keyhole::test_study_commands
