// The commands eval and sweep: what they print and write, continued sweeps, and error messages.
#include "app/cli/command.h"
#include "app/cli/commands.h"
#include "engine/base/index.h"
#include "engine/base/path_lock.h"
#include "engine/device/make_backend.h"
#include "engine/eval/answer_file.h"
#include "engine/eval/evaluate.h"
#include "tests/app/program_run.h"
#include "tests/reference/source_folder.h"
#include "tests/reference/tiny_model.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <set>
#include <sstream>

namespace keyhole::test_eval_command {
namespace {

class EvalCommand : public testing::ProgramRun {
  protected:
    void SetUp() override {  // needs no display
        folder_ = std::filesystem::temp_directory_path() / ("keyhole-eval-" + std::to_string(::getpid()));
        std::filesystem::create_directories(folder_);
        std::ofstream(path("text.txt")) << reference::random_text(400, 3);
    }
    std::string model() const { return " --model '" + tiny_.folder().string() + "'"; }
    std::string text() const { return " --text '" + path("text.txt") + "'"; }
    reference::TinyModel tiny_{reference::TinyShape{}};
};

TEST_F(EvalCommand, PrintsPerplexityOfEveryLane) {
    ASSERT_EQ(run("eval" + model() + text() +
                  " --context 64 --prefill 16 --json --lane full --lane h2o:budget=8 --bounds 0"),
              0)
        << output_;
    const auto lanes = nlohmann::json::parse(output_).at("lanes");
    ASSERT_EQ(lanes.size(), 2u);
    EXPECT_EQ(lanes[1].at("spec"), "h2o:budget=8");
    EXPECT_EQ(lanes[0].at("samples"), 6);
    EXPECT_EQ(lanes[0].at("tokens"), 6 * 48);
    EXPECT_EQ(lanes[0].at("nats_difference"), 0);
    EXPECT_NEAR(lanes[1].at("perplexity").get<double>(),
                std::exp(lanes[1].at("nats_per_token").get<double>()), 1e-6);
    ASSERT_EQ(run("eval" + model() + text() + " --context 64"), 0) << output_;
    EXPECT_NE(output_.find("perplexity"), std::string::npos) << output_;
    EXPECT_NE(output_.find("192 in all"), std::string::npos) << output_;
}

/// Beside lanes with a budget stand three seeds of random and an oracle; one switch takes them out.
TEST_F(EvalCommand, AFloorAndACeilingStandBesideAllLanes) {
    const std::string eval = "eval" + model() + " --task needle --samples 2 --context 300 --json --lane full";
    const auto specs = [&](const std::string& options) {
        EXPECT_EQ(run(eval + options), 0) << output_;
        const auto json = nlohmann::json::parse(output_);
        std::vector<std::string> found;
        for (const auto& lane : json.at("lanes")) found.push_back(lane.at("spec"));
        EXPECT_EQ(json.contains("floors"), options.find("--bounds 0") == std::string::npos);
        return found;
    };
    EXPECT_EQ(
        specs(" --lane tova:budget=32"),
        (std::vector<std::string>{"full", "tova:budget=32", "random:budget=32", "random:budget=32,seed=2",
                                  "random:budget=32,seed=3", "oracle:budget=32"}));
    EXPECT_EQ(nlohmann::json::parse(output_).at("floors")[0].at("lanes")[0].at("spec"), "tova:budget=32");
    EXPECT_EQ(specs(" --lane tova:budget=32 --bounds 0").size(), 2u);
    EXPECT_EQ(specs(" --lane tova:budget=32 --bounds 1").size(), 4u);
    EXPECT_EQ(specs("").size(), 1u) << "a full cache has no floor";
    EXPECT_EQ(run(eval + " --bounds -1"), 2) << output_;
    // Long texts have no oracle, which keeps the attention of all rows ahead, unless one is asked for.
    const std::string windows = " --text '" + path("text.txt") + "' --context 1100 --lane tova:budget=32";
    EXPECT_NE(run("eval" + model() + windows), 0) << "the text is shorter";
    EXPECT_NE(output_.find("no oracle stands beside the lanes"), std::string::npos) << output_;
    EXPECT_NE(run("eval" + model() + windows + " --bounds 3"), 0);
    EXPECT_EQ(output_.find("no oracle stands beside the lanes"), std::string::npos) << output_;
    // A sweep varies them with the lanes, and a figure decides without them.
    ASSERT_EQ(run("sweep" + model() + text() + " --context 40 --samples 2 --lane full --lane h2o" +
                  " --vary budget=4,8 --out '" + path("b") + "'"),
              0)
        << output_;
    EXPECT_EQ(lines("b/table.csv").size(), 1u + 1 + 2 + 2 * 4);
    EXPECT_NE(output_.find("floor random:budget=4, mean of 3 seeds"), std::string::npos) << output_;
    ASSERT_EQ(run("figure tova-7" + model() + text() +
                  " --context 64 --prefill 16 --samples 2 --lane full --lane window:budget=4 --out '" +
                  path("b7") + "'"),
              0)
        << output_;
    EXPECT_EQ(lines("b7/tova-7.csv").size(), 1u + 6 * 48);
    EXPECT_NE(output_.find("floor random:budget=4, mean of 3 seeds"), std::string::npos) << output_;
    EXPECT_EQ(run("figure a2sf-1" + model() + " --bounds 2 --out '" + path("r") + "'"), 2)
        << "it shows a run";
}

TEST_F(EvalCommand, AsksTasks) {
    ASSERT_EQ(run("eval" + model() +
                  " --task needle,list --samples 3 --context 400 --json --lane full --lane window:budget=32 "
                  "--bounds 0"),
              0)
        << output_;
    const auto lanes = nlohmann::json::parse(output_).at("lanes");
    ASSERT_EQ(lanes.size(), 4u);
    EXPECT_EQ(lanes[2].at("task"), "list");
    EXPECT_EQ(lanes[1].at("samples"), 3);
    EXPECT_EQ(lanes[0].at("tokens"), 3 * 5);
    EXPECT_GE(lanes[0].at("accuracy_interval").at(1).get<double>(),
              0.5);  // none right of three is weak evidence
}

TEST_F(EvalCommand, SweepGoesOnWhereItWasInterrupted) {
    const std::string sweep = "sweep" + model() + text() +
                              " --context 40 --samples 4 --bounds 0 --lane full --lane h2o --lane a2sf"
                              " --vary budget=4..16*2 --out '" +
                              path("s") + "'";
    ASSERT_EQ(run(sweep), 0) << output_;
    const auto kept = answers("s/answers.csv"), table = lines("s/table.csv");
    EXPECT_EQ(kept.size(), 1u + 4 * 7);
    EXPECT_EQ(table.size(), 1u + 7);
    // The first lane has no difference to itself.
    const std::string csv = read("s/table.csv");
    const std::vector<std::string> names = split_csv(csv.substr(0, csv.find('\n')));
    for (const std::string& line : table) {
        const std::vector<std::string> fields = split_csv(line);
        if (fields == names) continue;
        for (const char* name : {"nats_difference", "nats_difference_low", "nats_difference_high"}) {
            const auto column = std::find(names.begin(), names.end(), name) - names.begin();
            EXPECT_EQ(fields.at(to_index(column)).empty(), fields[1] == "full") << name << " " << line;
        }
    }
    EXPECT_NE(read("s/text.svg").find(">a2sf<"), std::string::npos);
    EXPECT_EQ(read("s/text.png").substr(1, 3), "PNG");

    // The file is cut in the middle of a line: only the missing answers are computed, and they are equal.
    const std::string whole = read("s/answers.csv");
    std::ofstream(path("s/answers.csv"), std::ios::binary) << whole.substr(0, whole.size() / 2);
    ASSERT_EQ(run(sweep), 0) << output_;
    EXPECT_EQ(answers("s/answers.csv"), kept);
    EXPECT_EQ(lines("s/table.csv"), table);
    const std::string before = read("s/answers.csv");
    ASSERT_EQ(run(sweep), 0) << output_;
    EXPECT_EQ(read("s/answers.csv"), before);
}

TEST_F(EvalCommand, RefusesASecondSweepIntoTheFolderMeanwhile) {
    std::filesystem::create_directories(path("s"));
    const std::string sweep = "sweep" + model() + text() + " --context 40 --samples 1 --lane h2o" +
                              " --vary budget=8 --out '" + path("s") + "'";
    {
        const auto other = PathLock::try_take(path("s"));
        EXPECT_EQ(run(sweep), 1);
        EXPECT_NE(output_.find("another command writes there"), std::string::npos) << output_;
        EXPECT_FALSE(std::filesystem::exists(path("s/answers.csv")));
    }
    EXPECT_EQ(run(sweep), 0) << output_;
}

/// Two sweeps into one folder: the table keeps the first sweep's answers and lists common answers once.
TEST_F(EvalCommand, ATableKeepsEarlierSweeps) {
    const std::string sweep =
        "sweep" + model() + text() + " --context 40 --samples 2 --bounds 0 --out '" + path("s") + "'";
    ASSERT_EQ(run(sweep + " --lane full --lane h2o --vary budget=25%,50%"), 0) << output_;
    EXPECT_NE(output_.find("\nh2o:budget=50% "), std::string::npos) << output_;  // the preset's own value
    const auto first = lines("s/table.csv");
    EXPECT_EQ(first.size(), 1u + 3);
    ASSERT_EQ(run(sweep + " --lane full --lane a2sf --vary alpha=0.2,0.5"), 0) << output_;
    EXPECT_NE(output_.find("\na2sf:alpha=0.2 "), std::string::npos) << output_;
    EXPECT_EQ(lines("s/table.csv").size(), 1u + 3 + 2);
    const std::string table = read("s/table.csv");
    EXPECT_TRUE(table.starts_with("questions,lane,spec,budget,alpha,samples,")) << table;
    EXPECT_NE(table.find("\ntext,h2o,h2o,50%,,2,"), std::string::npos) << table;
    EXPECT_NE(table.find("\ntext,a2sf,a2sf:alpha=0.5,,0.5,2,"), std::string::npos) << table;
    ASSERT_EQ(run(sweep + " --lane full --lane h2o --vary budget=25%,50%"), 0) << output_;
    EXPECT_EQ(lines("s/table.csv").size(), 1u + 3 + 2);
    // Windows of another length are other questions.
    ASSERT_EQ(
        run("sweep" + model() + text() +
            " --context 50 --samples 2 --bounds 0 --lane h2o --vary budget=25% --out '" + path("s") + "'"),
        0)
        << output_;
    EXPECT_EQ(lines("s/table.csv").size(), 1u + 3 + 2 + 1);
}

/// The plot of a text shows the ratios that the table prints, with their own intervals.
TEST_F(EvalCommand, PlotsOfTextShowPairedRatios) {
    ASSERT_EQ(run("sweep" + model() + text() + " --context 40 --samples 4 --lane full --lane window" +
                  " --bounds 0 --vary budget=4,16 --json --out '" + path("s") + "'"),
              0)
        << output_;
    // The note on stderr stands in the same text.
    const std::size_t begin = output_.find('{'), end = output_.rfind('}');
    const auto lanes = nlohmann::json::parse(output_.substr(begin, end + 1 - begin)).at("lanes");
    EXPECT_EQ(lanes[1].at("model"), tiny_.folder().filename().string());
    const std::string svg = read("s/text.svg");
    EXPECT_NE(svg.find("times the first lane"), std::string::npos);
    EXPECT_NE(svg.find(fmt::format("First lane: full, perplexity {:.3f}.",
                                   lanes[0].at("perplexity").get<double>())),
              std::string::npos);
    EXPECT_TRUE(std::filesystem::exists(path("s/text-perplexity.svg")));
    // The largest ratio has the highest bar: its ends are in the plot at the places of the interval.
    const double low = std::exp(lanes[1].at("nats_difference_interval").at(0).get<double>()),
                 high = std::exp(lanes[1].at("nats_difference_interval").at(1).get<double>());
    EXPECT_LT(low, high);
    const std::string table = read("s/table.csv");
    EXPECT_NE(table.find(fmt::format("{:.6g}", std::log(high))), std::string::npos) << table;
}

TEST_F(EvalCommand, TwoKeysArePanelsAndMaps) {
    ASSERT_EQ(
        run("sweep" + model() + text() +
            " --context 40 --samples 2 --lane full --lane h2o:recent=50% --lane tova --vary budget=4,8" +
            " --vary pool=mean,max --out '" + path("s") + "'"),
        0)
        << output_;
    // A value that equals the preset's default stays in the label.
    EXPECT_NE(output_.find("\nh2o:recent=50%,budget=4,pool=mean "), std::string::npos) << output_;
    const std::string svg = read("s/text.svg");
    for (const char* words : {">h2o:recent=50%<", ">tova<", ">pool=max<"})
        EXPECT_NE(svg.find(words), std::string::npos) << words;
    EXPECT_NE(read("s/text-map.svg").find(">pool<"), std::string::npos);
    EXPECT_TRUE(std::filesystem::exists(path("s/text-perplexity-map.png")));
}

/// Several models: each has its own questions and first lane, and resume holds for each.
TEST_F(EvalCommand, SweepsSeveralModels) {
    reference::TinyShape shape;
    shape.n_kv_heads = 1;
    const reference::TinyModel other(shape);
    const std::string sweep =
        "sweep" + model() + " --model '" + other.folder().string() + "'" + text() +
        " --context 40 --samples 2 --bounds 0 --lane full --lane h2o --vary budget=4,8" + " --out '" +
        path("s") + "'";
    ASSERT_EQ(run(sweep), 0) << output_;
    EXPECT_EQ(lines("s/answers.csv").size(), 1u + 2 * 2 * 3);
    const std::string before = read("s/answers.csv"), table = read("s/table.csv");
    EXPECT_EQ(lines("s/table.csv").size(), 1u + 2 * 3);
    const std::string name = other.folder().filename().string();
    EXPECT_NE(table.find("," + name + ","), std::string::npos) << table;
    EXPECT_NE(read("s/text-perplexity-memory.svg").find(">" + name + "<"), std::string::npos);
    ASSERT_EQ(run(sweep), 0) << output_;
    EXPECT_EQ(read("s/answers.csv"), before);
    EXPECT_EQ(read("s/table.csv"), table);
    // Bytes of K and V a token: layers * 2 * KV heads * head_dim * 4.
    std::istringstream in(table);
    std::set<std::string> bytes;
    for (std::string line; std::getline(in, line);)
        if (line.starts_with("text,full,")) bytes.insert(split_csv(line).end()[-7]);
    const auto of = [&](const reference::TinyShape& s) {
        return std::to_string(s.n_layers * 2 * s.n_kv_heads * s.head_dim * 4);
    };
    EXPECT_EQ(bytes, (std::set{of(reference::TinyShape{}), of(shape)})) << table;
    ASSERT_EQ(run("sweep" + model() + model() + text() + " --context 40 --out '" + path("t") + "'"), 2);
    EXPECT_NE(output_.find("is given twice"), std::string::npos) << output_;
}

TEST_F(EvalCommand, ReadsTablesFromBeforeThereWereModels) {
    const std::string sweep = "sweep" + model() + text() +
                              " --context 40 --samples 2 --lane full --lane h2o" +
                              " --vary budget=4,8 --out '" + path("s") + "'";
    ASSERT_EQ(run(sweep), 0) << output_;
    std::istringstream in(read("s/table.csv"));
    std::string old, before_held;
    for (std::string line; std::getline(in, line);) {
        line.resize(line.starts_with("questions,") ? line.rfind(',') : line.rfind(",\"Keyhole "));
        for (int i = 0; i < 3; ++i) line.resize(line.rfind(','));
        before_held += line + "\n";
        for (int i = 0; i < 4; ++i) line.resize(line.rfind(','));
        old += line + "\n";
    }
    const std::string now = read("s/table.csv");
    EXPECT_TRUE(old.substr(0, old.find('\n')).ends_with(",asked")) << old;
    EXPECT_TRUE(before_held.substr(0, before_held.find('\n')).ends_with(",depth")) << before_held;
    for (const std::string& earlier : {old, before_held}) {
        std::ofstream(path("s/table.csv")) << earlier;
        ASSERT_EQ(run(sweep), 0) << output_;
        EXPECT_EQ(read("s/table.csv"), now);
    }
}

TEST_F(EvalCommand, MapsATaskByDepthAndLength) {
    const std::string sweep = "sweep" + model() + " --task needle --map --lengths 300,400 --depths 0,100" +
                              " --samples 2 --bounds 0 --lane full --lane window:budget=16 --out '" +
                              path("m") + "'";
    ASSERT_EQ(run(sweep), 0) << output_;
    EXPECT_EQ(lines("m/answers.csv").size(), 1u + 4 * 2 * 2);
    const std::string table = read("m/table.csv");
    EXPECT_EQ(lines("m/table.csv").size(), 1u + 4 * 2);
    for (const char* cell : {",300,0%,", ",300,100%,", ",400,0%,", ",400,100%,"})
        EXPECT_NE(table.find(cell), std::string::npos) << table;
    // Depth 0 asks for the beginning of the text, depth 100 for its end.
    EXPECT_NE(table.find("context=400 distance=399..399"), std::string::npos) << table;
    EXPECT_NE(table.find("context=400 distance=1..1"), std::string::npos) << table;
    const std::string svg = read("m/needle-depth.svg");
    for (const char* words : {">window:budget=16<", ">400<", ">100<", "depth, %"})
        EXPECT_NE(svg.find(words), std::string::npos) << words;
    // Every cell says its interval, and that of the pair with the first lane, to a pointer.
    for (const char* lane : {"full", "window:budget=16"})
        for (const char* place : {"depth 0 %, 300 tokens", "depth 100 %, 400 tokens"}) {
            const std::size_t at = svg.find(fmt::format("<title>{}; {}: ", lane, place));
            ASSERT_NE(at, std::string::npos) << lane << place;
            double share = 0, low = 0, high = 0;
            ASSERT_EQ(std::sscanf(svg.c_str() + svg.find(": ", at),
                                  ": %lf (%lf to %lf) %% right, 2 questions", &share, &low, &high),
                      3);
            EXPECT_TRUE(low <= share && share <= high && low < high) << low << " " << share << " " << high;
            const bool paired = svg.substr(at, svg.find('<', at + 1) - at).find("first lane") != svg.npos;
            EXPECT_EQ(paired, lane[0] == 'w');
        }
    const std::string before = read("m/answers.csv");
    ASSERT_EQ(run(sweep), 0) << output_;
    EXPECT_EQ(read("m/answers.csv"), before);
}

/// A picture of a mask shows stored tokens that the row does not see apart from those that it attends to.
TEST_F(EvalCommand, MasksShowHiddenTokens) {
    const auto mask_of = [&](const std::string& lane) {
        EXPECT_EQ(run("decode" + model() + " --prompt-file '" + path("text.txt") +
                      "' --tokens 4 --ignore-eos --lane " + lane + " --out '" + path("run") +
                      "' --export mask --format svg"),
                  0)
            << output_;
        return read("run/lane0/mask_L0_G0.svg");
    };
    EXPECT_NE(mask_of("dilated:budget=8").find("stored, not attended"), std::string::npos);
    EXPECT_EQ(mask_of("window:budget=8").find("stored, not attended"), std::string::npos);
    // Only lanes that draw noise have an array of it.
    ASSERT_EQ(
        run("decode" + model() + " --prompt-file '" + path("text.txt") + "' --tokens 4 --ignore-eos" +
            " --lane full --lane keyformer:budget=8 --out '" + path("run") + "' --export noise --rows all"),
        0)
        << output_;
    EXPECT_FALSE(std::filesystem::exists(path("run/lane0/noise.npy")));
    EXPECT_TRUE(std::filesystem::exists(path("run/lane1/noise.npy")));
}

TEST_F(EvalCommand, ASweepLeavesForeignFilesAlone) {
    const std::string sweep = "sweep" + model() + text() +
                              " --context 40 --samples 1 --lane h2o --vary budget=8 --out '" + path("f") +
                              "'";
    std::filesystem::create_directories(path("f"));
    for (const char* name : {"f/answers.csv", "f/table.csv"}) {
        std::ofstream(path(name)) << "my own list, without a line end";
        EXPECT_EQ(run(sweep), 1) << output_;
        EXPECT_NE(output_.find(std::string(name) + ":1 is no"), std::string::npos) << output_;
        EXPECT_EQ(std::count(output_.begin(), output_.end(), '\n'), 1) << output_;
        EXPECT_EQ(read(name), "my own list, without a line end");
        std::filesystem::remove(path(name));
        ASSERT_EQ(::mkfifo(path(name).c_str(), 0600), 0);
        EXPECT_EQ(run(sweep), 1) << output_;
        EXPECT_NE(output_.find("it is a pipe"), std::string::npos) << output_;
        std::filesystem::remove(path(name));
    }
}

/// Merged weights are uploaded to the device once, not for every question, while the models are held.
TEST_F(EvalCommand, KeepsMergedWeightsOnTheDevice) {
    ::setenv("KEYHOLE_CUDA_MODULE", reference::built("libkeyhole_host_cuda.so").c_str(), 1);
    void* module = ::dlopen(reference::built("libkeyhole_host_cuda.so").c_str(), RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(module, nullptr);
    const auto n_uploads = reinterpret_cast<int (*)()>(::dlsym(module, "keyhole_test_uploads"));
    const auto uploads_of = [&](auto work) {
        const int before = n_uploads();
        work();
        return n_uploads() - before;
    };
    const auto loaded = load_model(tiny_.folder());
    const auto backend = make_backend(loaded, {BackendChoice::cuda, 1, 0}, nullptr);
    const std::vector<LaneSpec> lanes = {parse_lane_spec("window:kv=mqa,budget=200")};
    const Question question = text_windows(loaded, read("text.txt"), 40, 36, 1).make(0);
    const auto ask_it = [&] { ask(loaded, *backend, lanes, question); };
    ask_it();  // fills the rotation tables, once for all questions
    const int with_weights = uploads_of(ask_it);
    const auto held = hold_models(loaded, *backend, lanes);
    const int of_a_question = uploads_of(ask_it);
    EXPECT_EQ(with_weights, of_a_question + 2 * 2 + 4);  // k and v of two layers, tables of model and layout

    const auto uploads = [&](const std::string& command, const std::string& rest, int n_questions) {
        const CommandLine program("keyhole", "");
        add_eval_command(program);
        add_sweep_command(program);
        ::testing::internal::CaptureStdout();
        ::testing::internal::CaptureStderr();
        const int n = uploads_of([&] {
            std::istringstream words(command + model() + text() +
                                     " --backend cuda --context 40 --prefill 36 --json --samples " +
                                     std::to_string(n_questions) + rest);
            std::vector<std::string> arguments;
            for (std::string word; words >> std::quoted(word, '\'');) arguments.push_back(word);
            EXPECT_EQ(program.run(arguments), 0);
        });
        ::testing::internal::GetCapturedStdout();
        ::testing::internal::GetCapturedStderr();
        return n;
    };
    const std::string lane = " --bounds 0 --lane window:kv=mqa,budget=200",
                      grid = " --vary budget=200 --out " + path("s");
    EXPECT_EQ(uploads("eval", lane, 4) - uploads("eval", lane, 1), 3 * of_a_question);
    EXPECT_EQ(uploads("sweep", lane + grid + "4", 4) - uploads("sweep", lane + grid + "1", 1),
              3 * of_a_question);
    ::unsetenv("KEYHOLE_CUDA_MODULE");
}

TEST_F(EvalCommand, DrawsFiguresOfThePapers) {
    ASSERT_EQ(run("decode" + model() + " --prompt-file '" + path("text.txt") +
                  "' --tokens 4 --ignore-eos --out '" + path("run") + "' --export run,attention"),
              0)
        << output_;
    ASSERT_EQ(run("figure keyformer-3b --from '" + path("run") + "' --out '" + path("f") + "'"), 0)
        << output_;
    const std::string csv = read("f/keyformer-3b.csv");
    EXPECT_EQ(csv.substr(0, 18), "curve,x,y,made_by\n");
    EXPECT_NE(csv.find("layer 1,100,100,\n"), std::string::npos) << csv;
    ASSERT_EQ(run("figure keyformer-11 --from '" + path("run") + "' --out '" + path("f") + "'"), 0)
        << output_;
    EXPECT_EQ(lines("f/keyformer-11.csv").size(), 1u + 6);
    ASSERT_EQ(run("figure a2sf-5" + model() + text() + " --context 40 --samples 2 --bounds 0 --out '" +
                  path("a") + "'"),
              0)
        << output_;
    EXPECT_EQ(lines("a/table.csv").size(), 1u + 1 + 10);
    EXPECT_NE(read("a/a2sf-5.svg").find("forgetting factor"), std::string::npos);
}

TEST_F(EvalCommand, DrawsFiguresAgainstWordsAndPositions) {
    ASSERT_EQ(run("figure keyformer-16" + model() + text() +
                  " --context 40 --samples 2 --bounds 0 --vary tau=1,1..2 --out '" + path("k") + "'"),
              0)
        << output_;
    EXPECT_EQ(lines("k/table.csv").size(), 1u + 3);
    const std::string svg = read("k/keyformer-16.svg");
    EXPECT_NE(svg.find(">1..2<"), std::string::npos) << svg;  // the word stands below its point
    EXPECT_NE(svg.find(">tau<"), std::string::npos);

    ASSERT_EQ(
        run("figure tova-7" + model() + text() +
            " --context 64 --prefill 16 --samples 2 --bounds 0 --lane full --lane window:budget=4 --out '" +
            path("t") + "'"),
        0)
        << output_;
    const std::string csv = read("t/tova-7.csv");
    EXPECT_EQ(lines("t/tova-7.csv").size(), 1u + 2 * 48);
    EXPECT_NE(csv.find("\nfull,63,"), std::string::npos) << csv;
    // The last point is the perplexity that eval prints.
    const std::string last = csv.substr(csv.find("\nwindow:budget=4,63,") + 20, 5);
    ASSERT_EQ(run("eval" + model() + text() +
                  " --context 64 --prefill 16 --samples 2 --lane full --lane window:budget=4 --json"),
              0)
        << output_;
    const double perplexity = nlohmann::json::parse(output_).at("lanes").at(1).at("perplexity");
    EXPECT_NEAR(std::stod(last), perplexity, 0.2) << csv;
    EXPECT_NE(read("t/tova-7.svg").find("position"), std::string::npos);
}

TEST_F(EvalCommand, SaysInALineWhatIsWrong) {
    struct Case {
        std::string arguments;
        int status;
        std::string says;
    };
    for (const Case& c :
         {Case{"eval" + model(), 2, "--text FILE"},
          {"eval" + model() + " --task neddle", 2, "neddle"},
          {"eval" + model() + text() + " --context 40 --context 50", 2,
           "keyhole: --context is given twice; see keyhole eval --help"},
          {"sweep" + model() + " --task needle --map --lengths 20 --out '" + path("s") + "'", 2,
           "--lengths 20: task needle: a question does not fit"},
          {"eval" + model() + " --text /nowhere/x.txt", 1, "/nowhere/x.txt"},
          {"eval" + model() + text() + " --context 4000", 2, "--context"},
          {"eval" + model() + " --task needle --context 5000", 2, "5000"},
          {"eval" + model() + " --task needle --distance far", 2, "far"},
          {"eval" + model() + " --task needle --context 160 --distance 9999999", 2,
           "--distance 9999999: 9999999 tokens do not fit"},
          {"eval" + model() + " --task needle --context 160 --distance 10..160", 2, "do not fit"},
          {"eval" + model() + " --task needle --distance 99999999999", 2, "99999999999"},
          {"eval" + model() + text() + " --seed -1", 2,
           "'-1' is not a whole number from 0 to 18446744073709551615"},
          {"eval" + model() + text() + " --seed 4", 2, "--seed draws the questions of tasks"},
          {"eval" + model() + text() + " --samples 0x10", 2,
           "'0x10' is not a whole number from 1 to 16777216"},
          {"eval" + model() + text() + " --context 1e3", 2, "'1e3' is not a whole number"},
          {"sweep" + model() + text() + " --vary budget=1..1000+1 --vary sinks=1..1000+1 --out '" +
               path("s") + "'",
           2, "at most 10000"},
          {"eval" + model() + text() + " --lane h3o", 2, "h3o"},
          {"sweep" + model() + text() + " --vary budgt=1,2 --out '" + path("s") + "'", 2, "budgt"},
          {"sweep" + model() + text() + " --context 40 --lane h2o --vary budget=8 --out /proc/nowhere", 1,
           "/proc/nowhere"},
          {"figure keyformer-99 --out x", 2, "keyformer-99"},
          {"figure keyformer-3a", 2, "--out DIR"},
          {"figure", 2, "keyhole figure --list"},
          {"figure tova-9 --from x --out x", 2, "--prompt-file, not --from"},
          {"figure mlkv-4 --out x", 2, "compares models"},
          {"figure tova-7 --out x", 2, "--text FILE"},
          {"figure tova-7 --out x --task needle", 2, "not --vary, --task or --data"},
          {"sweep" + model() + text() + " --out '" + path("s") + "'", 2, "nothing varies"},
          {"sweep" + model() + " --task needle --lengths 64 --out '" + path("s") + "'", 2, "give --map"},
          {"sweep" + model() + " --task passage --map --out '" + path("s") + "'", 2, "--map shows one task"},
          {"sweep" + model() + " --task needle --map --lengths 99999 --out '" + path("s") + "'", 2, "99999"},
          {"sweep" + model() + " --task needle --map --depths 0..150+50 --out '" + path("s") + "'", 2, "150"},
          {"eval" + model() + text() + " --ask statement", 2, "--ask-when and --chat are for tasks"},
          {"eval" + model() + " --task needle --ask me", 2, "--ask"},
          {"figure tova-3 --out x", 2, "--text FILE"}}) {
        EXPECT_EQ(run(c.arguments), c.status) << c.arguments << "\n" << output_;
        EXPECT_NE(output_.find(c.says), std::string::npos) << output_;
        EXPECT_EQ(std::count(output_.begin(), output_.end(), '\n'), 1) << output_;
    }
}

}  // namespace
}  // namespace keyhole::test_eval_command
