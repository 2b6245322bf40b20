// The command figure: pictures of the papers from runs, checked by properties and by other commands.
#include "app/base/figure_record.h"
#include "app/papers/figure.h"
#include "engine/backend/backend.h"
#include "engine/device/make_backend.h"
#include "engine/eval/answer_file.h"
#include "engine/eval/evaluate.h"
#include "tests/app/program_run.h"
#include "tests/reference/tiny_model.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <map>
#include <set>

namespace keyhole {
namespace {

class FigureCommand : public testing::ProgramRun {
  protected:
    void SetUp() override {  // needs no display
        folder_ = std::filesystem::temp_directory_path() / ("keyhole-figure-" + std::to_string(::getpid()));
        std::filesystem::create_directories(folder_);
        std::ofstream(path("text.txt")) << reference::random_text(400, 3);
        std::ofstream(path("prompt.txt")) << reference::random_text(39, 5);
    }
    std::string model() const { return " --model '" + tiny_.folder().string() + "'"; }
    /// Draws a figure of a run of 40 + 8 tokens and returns the lines of its table, as fields.
    std::vector<std::vector<std::string>> draw(const std::string& name, const std::string& more = "") {
        EXPECT_EQ(run("figure " + name + model() + " --prompt-file '" + path("prompt.txt") + "' --tokens 8" +
                      more + " --out '" + path("f") + "'"),
                  0)
            << output_;
        std::istringstream in(read("f/" + name + ".csv"));
        std::vector<std::vector<std::string>> lines;
        for (std::string line; std::getline(in, line);) lines.push_back(split_csv(line));
        EXPECT_GT(lines.size(), 1u) << name;
        lines.erase(lines.begin());
        EXPECT_NE(output_.find("Paper: "), std::string::npos) << output_;
        EXPECT_TRUE(std::filesystem::exists(path("f/" + name + ".svg")));
        expect_record(name);
        return lines;
    }
    /// The record says what the terminal says, and its picture is there.
    void expect_record(const std::string& name, const std::string& folder = "f") {
        const FigureRecord record = read_figure_record(path(folder));
        EXPECT_EQ(record.figure, name);
        EXPECT_EQ(record.models, std::vector{tiny_.folder().string()});
        ASSERT_FALSE(record.findings.empty());
        for (const FigureRecord::Finding& finding : record.findings) {
            EXPECT_TRUE(std::filesystem::exists(path(folder + "/" + finding.picture + ".png")))
                << finding.picture;
            for (const std::string& sentence : finding.sentences)
                EXPECT_NE(output_.find(sentence + "\n"), std::string::npos) << sentence << output_;
            EXPECT_EQ(finding.verdict == "holds", output_.find("\nHolds here: ") != std::string::npos);
            EXPECT_EQ(finding.verdict == "fails",
                      output_.find("\nDoes not hold here: ") != std::string::npos);
        }
    }
    nlohmann::json decode(const std::string& lanes) {
        EXPECT_EQ(
            run("decode" + model() + " --prompt-file '" + path("prompt.txt") +
                "' --tokens 8 --ignore-eos --follow " + lanes + " --out '" + path("run") + "' --export run"),
            0)
            << output_;
        return nlohmann::json::parse(read("run/run.json"));
    }
    reference::TinyModel tiny_{reference::TinyShape{}};
};

constexpr int kRows = 48, kHeads = 8;  // of the tiny model: two layers of four heads

TEST_F(FigureCommand, ListsEveryFigureWithItsCommand) {
    ASSERT_EQ(run("figure --list"), 0) << output_;
    for (const char* name :
         {"keyformer-3c", "keyformer-4", "keyformer-8", "keyformer-13", "keyformer-table2", "keyformer-eq8",
          "a2sf-1",       "a2sf-2",      "a2sf-4",      "a2sf-6",       "a2sf-table1",      "a2sf-table2",
          "tova-4",       "tova-5",      "tova-9",      "tova-10",      "tova-11",          "tova-table2",
          "mlkv-4",       "mlkv-table3", "tova-6",      "tova-13",      "tova-table4",      "tova-table5",
          "keyformer-1",  "mlkv-table1", "mlkv-table2"})
        EXPECT_NE(output_.find("\n" + std::string(name) + "\n"), std::string::npos) << name;
    std::set<std::string_view> names;
    for (const Figure& figure : figures()) {
        EXPECT_TRUE(names.insert(figure.name).second) << figure.name;
        EXPECT_FALSE(figure.finding.empty()) << figure.name;
        EXPECT_FALSE(figure.seen_on.empty()) << figure.name;
        EXPECT_GT(figure.minutes, 0) << figure.name;
        for (const std::string& lane : figure.lanes) EXPECT_NO_THROW(parse_lane_spec(lane)) << lane;
        for (const std::string& vary : figure.varies) EXPECT_NO_THROW(parse_vary(vary)) << vary;
        for (const std::string& lane : figure.claim.lanes)
            EXPECT_NE(std::find(figure.lanes.begin(), figure.lanes.end(), lane), figure.lanes.end()) << lane;
    }
    ASSERT_EQ(run("figure --list --json"), 0) << output_;
    const nlohmann::json list = nlohmann::json::parse(output_);
    ASSERT_EQ(list.size(), figures().size());
    for (std::size_t i = 0; i < list.size(); ++i) {
        EXPECT_EQ(list[i].at("name").get<std::string>(), figures()[i].name);
        EXPECT_EQ(list[i].at("command").get<std::string>(), command_of(figures()[i]));
    }
    ASSERT_EQ(run("figure tova-table1 --out x"), 2);
    EXPECT_NE(output_.find("keyhole bench --paper tova-table1"), std::string::npos) << output_;
}

/// A row of attention sums to 1, so all sums together count the rows, and forgetting sums a geometric series.
TEST_F(FigureCommand, AccumulatedScoresSumUpToTheRows) {
    std::map<std::string, double> total;
    for (const auto& line : draw("a2sf-1"))
        if (line[1] == "score") total[line[0]] += std::stod(line[3]);
    ASSERT_EQ(total.size(), 2u);
    EXPECT_NEAR(total.at("sum of all rows (A2S)"), kRows * kHeads, 0.5);
    EXPECT_NEAR(total.at("with forgetting, alpha 0.2 (A2SF)"), kHeads / (1 - 0.2), 0.05);
}

TEST_F(FigureCommand, TheToyIsTheProductOfItsPanels) {
    std::map<std::string, std::map<std::pair<std::string, std::string>, double>> value;
    for (const auto& line : draw("a2sf-2")) value[line[0]][{line[1], line[2]}] = std::stod(line[3]);
    auto &p = value.at("p (A2S)"), &weight = value.at("alpha^(n-q), alpha 0.5"),
         &product = value.at("p alpha^(n-q) (A2SF)");
    std::map<std::string, double> sum;
    for (const auto& [cell, w] : weight) {
        EXPECT_NEAR(w, std::pow(0.5, 7 - std::stoi(cell.first)), 1e-6);
        EXPECT_NEAR(product.at(cell), w * p.at(cell), 1e-5);
        sum[cell.second] += product.at(cell);
    }
    for (const auto& [column, expected] : sum)
        EXPECT_NEAR((product.at({"sum", column})), expected, 1e-5) << column;
}

TEST_F(FigureCommand, ConstantNoiseChangesNoEntropy) {
    std::map<std::string, std::map<std::string, double>> entropy;
    for (const auto& line : draw("keyformer-eq8")) entropy[line[0]][line[1]] = std::stod(line[2]);
    for (const auto& [tau, h] : entropy.at("none")) {
        EXPECT_NEAR(h, entropy.at("constant").at(tau), 1e-4);
        EXPECT_LE(h, std::log(kRows)) << "no more than that of equal shares";
    }
    EXPECT_GT(entropy.at("none").at("2"), entropy.at("none").at("1")) << "tau flattens";
}

TEST_F(FigureCommand, ShowsTheMeasuresOfDecode) {
    std::string lanes, specs;
    for (const char* spec : {"window:budget=20%,shadow=on", "h2o:budget=20%,shadow=on",
                             "a2sf:budget=20%,alpha=0.1,shadow=on", "a2sf:budget=20%,alpha=0.5,shadow=on"})
        lanes += fmt::format(" --lane {}", spec);
    const auto cosines = decode(lanes).at("lanes");
    int here = 0;
    for (const auto& line : draw("a2sf-table2")) {
        if (line[0] != "here") continue;
        EXPECT_NEAR(std::stod(line[2]),
                    cosines[static_cast<std::size_t>(here)].at("metrics").at("cosine_ideal").get<double>(),
                    1e-4);
        ++here;
    }
    EXPECT_EQ(here, 4);
    const auto lives = decode(" --lane tova:budget=8,prefill=stepwise").at("lanes")[0].at("metrics");
    const auto drawn = draw("tova-9", " --lane tova:budget=8,prefill=stepwise");
    ASSERT_EQ(drawn.size(), 25u);
    for (std::size_t p = 0; p < drawn.size(); ++p)
        EXPECT_NEAR(std::stod(drawn[p][2]), lives.at("lifetime_by_position")[p].get<double>(), 0.01) << p;
}

TEST_F(FigureCommand, DrawsTheOtherFiguresOfRuns) {
    for (const char* name :
         {"keyformer-3a", "keyformer-3b", "keyformer-11", "keyformer-4", "a2sf-4", "a2sf-6", "tova-table2"})
        draw(name, std::string(name).starts_with("keyformer-4") ? " --lane full --lane h2o:budget=8" : "");
    // The mean curve of the mass ends at 100 %, and the cross of 90 % is said.
    EXPECT_NE(read("f/keyformer-3b.csv").find("mean of all layers,100,100,\n"), std::string::npos);
}

/// The cells are cube roots of probabilities, here without reduction: a row's cubes sum up to 1.
TEST_F(FigureCommand, HeatMapsHoldTheRowsOfEveryHead) {
    std::map<std::pair<std::string, std::string>, double> sum;
    for (const auto& line : draw("keyformer-14")) sum[{line[0], line[1]}] += std::pow(std::stod(line[3]), 3);
    ASSERT_EQ(sum.size(), 8u * 8) << "two layers of four heads, eight decoded rows";
    for (const auto& [cell, p] : sum) EXPECT_NEAR(p, 1, 0.01) << cell.first << " " << cell.second;
    EXPECT_NE(output_.find("% of the entries are exactly zero in half precision"), std::string::npos);
}

/// After a row a lane stores its budget; before, all tokens so far.
TEST_F(FigureCommand, KeptMapsShowTheBudget) {
    std::map<std::pair<std::string, int>, int> stored;
    for (const auto& line : draw("tova-12", " --lane tova:budget=8,prefill=stepwise"))
        stored[{line[0], std::stoi(line[1])}] += std::stoi(line[3]);
    ASSERT_EQ(stored.size(), 2u * kRows);
    for (const auto& [cell, n] : stored) EXPECT_EQ(n, std::min(cell.second + 1, 8)) << cell.second;
    EXPECT_NE(output_.find("% of the kept tokens are recent (paper 73 to 76 %)"), std::string::npos);
    for (const auto& line : draw("tova-8", " --lane tova:budget=8,prefill=stepwise"))
        EXPECT_EQ(line[0], "layer 1") << "the last one";
    draw("tova-8", " --lane tova:budget=200");
    EXPECT_NE(output_.find("Cannot be seen on this model: the budget holds the whole text."),
              std::string::npos)
        << output_;
}

/// The kinds' lifetimes are over the mean of all tokens, so that their mean, weighted by tokens, is 1.
TEST_F(FigureCommand, LifetimesOfKindsAverageToThatOfAllTokens) {
    double sum = 0;
    int n = 0;
    for (const auto& line : draw("tova-table2", " --lane tova:budget=8,prefill=stepwise")) {
        if (line[0].starts_with("paper")) continue;
        const int tokens = std::stoi(line[1].substr(line[1].find('(') + 1));
        sum += tokens * std::stod(line[2]);
        n += tokens;
    }
    EXPECT_EQ(n, kRows);
    EXPECT_NEAR(sum / n, 1, 1e-3);
}

/// A user's own questions take the place of the figure's task, and the paper's measure decides.
TEST_F(FigureCommand, AsksAUsersOwnQuestions) {
    std::ofstream data(path("own.jsonl"));
    for (const char* word : {"a", "b", "c"})
        data << nlohmann::json{{"prompt", std::string("once ") + word}, {"references", {"a b", "c"}}} << "\n";
    data.close();
    for (const char* name : {"keyformer-7", "keyformer-13"}) {
        ASSERT_EQ(run("figure " + std::string(name) + model() + " --data '" + path("own.jsonl") +
                      "' --answer-tokens 4 --vary budget=50% --out '" + path("d") + "'"),
                  0)
            << output_;
        EXPECT_EQ(output_.find("A stand-in"), std::string::npos) << output_;
        expect_record(name, "d");
        EXPECT_EQ(read_figure_record(path("d")).findings.at(0).picture, std::string(name) + "-rouge2");
    }
    EXPECT_EQ(run("figure tova-7" + model() + " --text '" + path("text.txt") + "' --data '" +
                  path("own.jsonl") + "' --out '" + path("d") + "'"),
              2);
}

/// Several tasks are one picture, with the paper's data sets beside them.
TEST_F(FigureCommand, DrawsSeveralTasksAsOnePicture) {
    ASSERT_EQ(run("figure a2sf-table1" + model() + " --samples 2 --context 400 --out '" + path("m") + "'"), 0)
        << output_;
    expect_record("a2sf-table1", "m");
    for (const FigureRecord::Finding& finding : read_figure_record(path("m")).findings)
        EXPECT_EQ(finding.picture, "a2sf-table1");
    const std::string csv = read("m/a2sf-table1.csv"), svg = read("m/a2sf-table1.svg");
    for (const char* task : {"needle", "fact", "latest", "dialogue"}) {
        EXPECT_NE(csv.find(std::string("\nwindow,") + task + ","), std::string::npos) << csv;
        EXPECT_NE(svg.find(std::string(">") + task + "<"), std::string::npos) << task;
    }
    EXPECT_NE(csv.find("\nwindow,paper: mean of 7 sets,37.4,\n"), std::string::npos) << csv;
    EXPECT_NE(svg.find(">task, budget=20%<"), std::string::npos);
}

/// Figures of one folder keep apart: each has its own names, figure.json knows all, and a figure replaces its
/// own files alone, as a whole.
TEST_F(FigureCommand, SeveralFiguresShareAFolder) {
    const auto figure = [&](const std::string& name, const std::string& more = "") {
        return run("figure " + name + model() + " " + more + " --out '" + path("one") + "'");
    };
    const auto files = [&] {
        std::set<std::string> names;
        for (const auto& entry : std::filesystem::directory_iterator(path("one")))
            names.insert(entry.path().filename().string());
        return names;
    };
    const std::string sweep = "--samples 2 --context 160 --vary ";
    ASSERT_EQ(figure("a2sf-3", sweep + "budget=20%,50%"), 0) << output_;
    const std::string first = read("one/a2sf-3.svg");
    ASSERT_FALSE(first.empty()) << output_;
    ASSERT_EQ(figure("a2sf-5", sweep + "alpha=0,0.5"), 0) << output_;
    ASSERT_EQ(figure("a2sf-1", "--prompt-file '" + path("prompt.txt") + "' --tokens 4"), 0) << output_;
    EXPECT_EQ(read("one/a2sf-3.svg"), first);
    for (const char* name : {"a2sf-3.png", "a2sf-5.svg", "a2sf-1.svg", "a2sf-1.csv"})
        EXPECT_TRUE(files().contains(name)) << name;
    const auto json = nlohmann::json::parse(read("one/figure.json"));
    EXPECT_EQ(json["figure"], "a2sf-1");
    std::set<std::string> known = {json["figure"]}, listed = json["files"].get<std::set<std::string>>();
    for (const auto& other : json["others"]) {
        known.insert(other["figure"]);
        listed.merge(other["files"].get<std::set<std::string>>());
    }
    EXPECT_EQ(known, (std::set<std::string>{"a2sf-1", "a2sf-3", "a2sf-5"}));
    listed.insert({"figure.json", "answers.csv", "table.csv"});
    EXPECT_EQ(files(), listed);
    // A file that the figure draws no more goes with its next version; the user's own stays.
    ASSERT_EQ(figure("a2sf-5", sweep + "alpha=0,0.5 --vary budget=20%,30%"), 0) << output_;
    EXPECT_TRUE(files().contains("a2sf-5-map.svg"));
    std::ofstream(path("one/mine.svg")) << "mine";
    ASSERT_EQ(figure("a2sf-5", sweep + "alpha=0,0.5"), 0) << output_;
    EXPECT_FALSE(files().contains("a2sf-5-map.svg"));
    EXPECT_EQ(read("one/mine.svg"), "mine");
    EXPECT_EQ(read("one/a2sf-3.svg"), first);
}

/// One window is too few, so that it decides nothing.
TEST_F(FigureCommand, OneWindowOfATextDecidesNothing) {
    reference::TinyShape small;  // the text goes beyond its context
    small.n_ctx = 64;
    const reference::TinyModel other{small};
    ASSERT_EQ(run("figure tova-7 --model '" + other.folder().string() + "' --text '" + path("text.txt") +
                  "' --context 200 --prefill 16 --lane tova:budget=8 --lane sink:budget=8 --out '" +
                  path("t") + "' --samples 1"),
              0)
        << output_;
    EXPECT_NE(output_.find("\nToo few samples: "), std::string::npos) << output_;
    EXPECT_NE(output_.find("by 1 window; "), std::string::npos) << output_;
}

TEST_F(FigureCommand, RefusesBeforeTheWork) {
    for (const char* options : {" --task needle", " --text x", " --vary budget=8", " --data x"}) {
        EXPECT_EQ(run("figure a2sf-1" + model() + options + " --out '" + path("r") + "'"), 2) << options;
        EXPECT_NE(output_.find("it takes --prompt-file"), std::string::npos) << output_;
    }
    EXPECT_EQ(run("sweep" + model() + model() + " --task needle --samples 2 --context 160 --out '" +
                  path("r") + "'"),
              2);
    EXPECT_EQ(std::count(output_.begin(), output_.end(), '\n'), 1) << output_;
    EXPECT_FALSE(std::filesystem::exists(path("r")));
    // The second model's context is too short; the first one is not asked.
    reference::TinyShape small;
    small.n_ctx = 64;
    const reference::TinyModel other{small};
    EXPECT_EQ(run("sweep" + model() + " --model '" + other.folder().string() +
                  "' --task needle --context 160 --samples 2 --lane full --out '" + path("r") + "'"),
              2);
    EXPECT_EQ(std::count(output_.begin(), output_.end(), '\n'), 1) << output_;
    EXPECT_FALSE(std::filesystem::exists(path("r")));
    // The second model has no layer 1; the first one is not asked.
    reference::TinyShape shallow;
    shallow.n_layers = 1;
    const reference::TinyModel flat{shallow};
    EXPECT_EQ(
        run("sweep" + model() + " --model '" + flat.folder().string() + "' --text '" + path("text.txt") +
            "' --context 40 --samples 1 --lane h2o:budget=8,budget@L1=4 --vary recent=2 --out '" + path("r") +
            "'"),
        2);
    EXPECT_NE(output_.find("an override names layer 1;"), std::string::npos) << output_;
    EXPECT_EQ(std::count(output_.begin(), output_.end(), '\n'), 1) << output_;
    EXPECT_FALSE(std::filesystem::exists(path("r")));
    // The second task does not fit; the first one is not asked.
    EXPECT_EQ(run("sweep" + model() +
                  " --task needle,fact --samples 2 --context 160 --vary budget=8 --out '" + path("r") + "'"),
              2);
    EXPECT_EQ(std::count(output_.begin(), output_.end(), '\n'), 1) << output_;
    EXPECT_FALSE(std::filesystem::exists(path("r")));
}

TEST_F(FigureCommand, RefusesALaneThatTheRunHasNot) {
    const auto refused = [&](const std::string& options, const std::string& why) {
        EXPECT_EQ(run("figure " + options + " --out '" + path("r") + "'"), 2) << options << output_;
        EXPECT_EQ(output_, "keyhole: " + why + "\n") << options;
        EXPECT_FALSE(std::filesystem::exists(path("r"))) << options;
    };
    const std::string prompt = model() + " --tokens 4 --prompt-file '" + path("prompt.txt") + "'";
    for (const std::string name : {"keyformer-3a", "keyformer-3b", "keyformer-11"}) {
        refused(name + prompt + " --of-lane 1", "--of-lane: lane 1 does not exist: the run has lane 0");
        refused(name + prompt + " --lane full --lane full --of-lane 2",
                "--of-lane: lane 2 does not exist: the run has lanes 0 to 1");
    }
    ASSERT_EQ(run("decode" + prompt + " --lane full --lane h2o:budget=8 --export run,attention --out '" +
                  path("two") + "'"),
              0)
        << output_;
    refused("keyformer-3a --from '" + path("two") + "' --of-lane 9",
            "--of-lane: lane 9 does not exist: the run has lanes 0 to 1");
    EXPECT_EQ(run("figure keyformer-3a --from '" + path("two") + "' --of-lane 1 --out '" + path("l1") + "'"),
              0)
        << output_;
    EXPECT_NE(read("l1/keyformer-3a.csv"), "");
    refused("a2sf-1" + prompt + " --of-lane 0",
            "figure a2sf-1 shows all lanes of its run; leave out --of-lane");
}

TEST_F(FigureCommand, RefusesOptionsThatItWouldIgnore) {
    const auto refused = [&](const std::string& options, const std::string& why) {
        EXPECT_EQ(run("figure " + options), 2) << options << output_;
        EXPECT_EQ(output_, "keyhole: " + why + "\n") << options;
    };
    const std::string out = model() + " --out '" + path("r") + "'";
    for (const std::string option : {"--samples 3", "--context 64", "--seed 2"})
        refused("keyformer-3a " + option + out,
                "figure keyformer-3a shows a run, which has no questions; leave out " +
                    option.substr(0, option.find(' ')));
    refused("keyformer-7 --tokens 9" + out,
            "figure keyformer-7 is measured on questions or a text; leave out --tokens");
    refused("nope --list", "--list names all figures; leave out 'nope', or --list");
    EXPECT_FALSE(std::filesystem::exists(path("r")));
}

/// The baseline reads pieces of a text, each from its beginning.
TEST_F(FigureCommand, AShorterContextForgetsEarlierPieces) {
    ASSERT_EQ(run("figure tova-3" + model() + " --text '" + path("text.txt") +
                  "' --context 40 --prefill 16 --samples 2 --lane full --lane tova --vary budget=8 --out '" +
                  path("t") + "'"),
              0)
        << output_;
    EXPECT_NE(output_.find("shorter context, nothing evicted"), std::string::npos) << output_;
    expect_record("tova-3", "t");
    const auto loaded = load_model(tiny_.folder());
    const auto backend = make_backend(loaded, {BackendChoice::cpu, 1, 0}, nullptr);
    const std::vector<LaneSpec> full = {parse_lane_spec("full")};
    const QuestionSet set = text_windows(loaded, read("text.txt"), 40, 16, 2);
    std::istringstream in(read("t/answers.csv"));
    int n = 0;
    for (std::string line; std::getline(in, line);) {
        const std::vector<std::string> fields = split_csv(line);
        if (fields[1] != "shorter context 8") continue;
        const Question question = set.make(std::stoi(fields[2]));
        double nats = 0;
        for (std::size_t t = 0; t < question.fed.size(); ++t) {
            Question one;  // one token after the whole piece before it, with no step in between
            one.prompt = {reference::kBos};
            one.prompt.insert(one.prompt.end(), question.fed.begin() + static_cast<std::ptrdiff_t>(t / 8 * 8),
                              question.fed.begin() + static_cast<std::ptrdiff_t>(t));
            one.fed = {question.fed[t]};
            nats += ask(loaded, *backend, full, one).front().nats;
        }
        EXPECT_NEAR(std::stod(fields[4]), nats, 1e-3 * nats);
        ++n;
    }
    EXPECT_EQ(n, 2);
}

/// Shards answer the baseline too: what is joined lacks nothing, and gives the same figure.
TEST_F(FigureCommand, AShorterContextIsSharded) {
    const std::string figure = "figure tova-3" + model() + " --text '" + path("text.txt") +
                               "' --context 40 --prefill 16 --samples 2 --lane full --lane tova --vary "
                               "budget=8 --out '";
    ASSERT_EQ(run(figure + path("whole") + "'"), 0) << output_;
    for (const char* shard : {"1", "2"})
        ASSERT_EQ(run(figure + path(fmt::format("part{}", shard)) + "' --shard " + shard + "/2"), 0)
            << output_;
    const auto n_pieces = [&](const std::string& folder) {
        return std::ranges::count_if(csv_lines(read(folder + "/answers.csv")),
                                     [](const auto& fields) { return fields[1] == "shorter context 8"; });
    };
    EXPECT_EQ(n_pieces("part1"), 1);
    ASSERT_EQ(run("merge '" + path("part1") + "' '" + path("part2") + "' --out '" + path("joined") + "'"), 0)
        << output_;
    EXPECT_EQ(n_pieces("joined"), 2);
    const std::string joined = read("joined/answers.csv");
    ASSERT_EQ(run(figure + path("joined") + "'"), 0) << output_;
    EXPECT_EQ(read("joined/answers.csv"), joined) << "nothing is answered again";
    const auto findings = [&](const std::string& folder) {
        return nlohmann::json::parse(read(folder + "/figure.json")).at("findings");
    };
    EXPECT_EQ(findings("joined"), findings("whole"));
}

/// Plots of text show the ratio of each pair and the interval of the pairs; those of tasks show both.
TEST(SweepPlot, RatiosOfTextHaveTheIntervalsOfTheirPairs) {
    SweepResult result;
    result.name = "text";
    result.varies = {parse_vary("budget=8,16")};
    std::vector<std::vector<Outcome>> lanes(3);
    for (int i = 0; i < 6; ++i) {
        const double nats = 10 + 3 * i;  // windows differ much more than lanes do
        lanes[0].push_back({nats, 10, 40, false});
        lanes[1].push_back({nats + 1 + 0.1 * i, 10, 40, false});
        lanes[2].push_back({nats + 0.5, 10, 40, false});
    }
    const std::vector<std::vector<std::string>> values = {{}, {"8"}, {"16"}};
    for (std::size_t lane = 0; lane < lanes.size(); ++lane)
        result.points.push_back(
            {"m", lane == 0 ? "full" : "h2o", values[lane], 0, score_lane(lanes[lane], lanes[0])});
    const CurvePlot plot = sweep_plot(result, sweep_quantities(result)[0]);
    ASSERT_EQ(plot.curves.size(), 2u);
    const Curve& h2o = plot.curves[0].name == "h2o" ? plot.curves[0] : plot.curves[1];
    const LaneScore& score = result.points[1].score;
    EXPECT_NEAR(h2o.y[0], std::exp(0.125), 1e-9) << "the mean difference is 1.25 nats of 10 tokens";
    EXPECT_NEAR(h2o.y[1], std::exp(0.05), 1e-9);
    EXPECT_NEAR(h2o.low[0], std::exp(score.nats_difference.interval.low), 1e-9);
    EXPECT_NEAR(h2o.high[0], std::exp(score.nats_difference.interval.high), 1e-9);
    EXPECT_LT(h2o.high[0] - h2o.low[0], 0.1) << "paired: the windows' own spread is gone";
    const SweepQuantity perplexity = sweep_quantities(result)[1];
    EXPECT_NEAR(sweep_plot(result, perplexity).curves[0].y[0], score.perplexity, 1e-9);
}

}  // namespace
}  // namespace keyhole
