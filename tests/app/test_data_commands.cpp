// Commands on a user's own questions, on several prompts, and with beams: what they print and write, and what
// they refuse in a line.
#include "engine/base/csv_field.h"
#include "tests/app/program_run.h"
#include "tests/reference/tiny_model.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <set>

namespace keyhole {
namespace {

using Json = nlohmann::json;

class DataCommands : public testing::ProgramRun {
  protected:
    void SetUp() override {  // needs no display
        folder_ = std::filesystem::temp_directory_path() / ("keyhole-data-" + std::to_string(::getpid()));
        std::filesystem::create_directories(folder_);
        std::ofstream texts(path("own.jsonl")), choices(path("two.jsonl"));
        for (const char* word : {"hare", "fox", "owl"}) {
            const std::string prompt = std::string("once upon a time there was a ") + word;
            texts << Json{{"prompt", prompt}, {"references", {"a b", "c"}}} << "\n";
            choices << Json{{"prompt", prompt}, {"choices", {"ran", "slept well"}}, {"answer", 1}} << "\n";
        }
        std::ofstream(path("bad.jsonl")) << "{\"prompt\": \"a\", \"references\": [\"b\"]}\n{\"prompt\": 4}\n";
        std::ofstream(path("one.txt")) << "once upon a time";
        std::ofstream(path("two.txt")) << "there was a hare";
    }
    std::string model() const { return " --model '" + tiny_.folder().string() + "'"; }
    std::string data(const std::string& name) const { return " --data '" + path(name) + "'"; }
    reference::TinyModel tiny_{reference::TinyShape{}};
};

TEST_F(DataCommands, EvalMeasuresOwnTextsAndChoices) {
    ASSERT_EQ(run("eval" + model() + data("own.jsonl") + data("two.jsonl") +
                  " --answer-tokens 5 --json --answers '" + path("said.jsonl") +
                  "' --bounds 0 --lane full --lane window:budget=4"),
              0)
        << output_;
    const Json lanes = Json::parse(output_).at("lanes");
    ASSERT_EQ(lanes.size(), 4u);
    EXPECT_EQ(lanes[0].at("task"), "own");
    EXPECT_EQ(lanes[1].at("samples"), 3);
    EXPECT_TRUE(lanes[0].at("measures").at("rouge1").at("difference").is_null());
    EXPECT_EQ(lanes[1].at("measures").at("f1").at("difference").at("interval").size(), 2u);
    EXPECT_TRUE(lanes[0].contains("rouge_geometric_mean"));
    EXPECT_FALSE(lanes[2].contains("rouge_geometric_mean"));
    EXPECT_EQ(lanes[2].at("measures").at("acc").at("value"), lanes[2].at("accuracy"));
    std::istringstream said(read("said.jsonl"));
    int n = 0;
    for (std::string line; std::getline(said, line); ++n) {
        const Json json = Json::parse(line);
        EXPECT_EQ(json.at("questions"), n < 6 ? "own" : "two");
        EXPECT_EQ(json.at("question"), n % 6 / 2);
        EXPECT_EQ(json.at("lane"), n % 2 == 0 ? "full" : "window:budget=4");
        EXPECT_TRUE(json.at("answer").is_string());
    }
    EXPECT_EQ(n, 12);
    ASSERT_EQ(run("eval" + model() + data("own.jsonl") + " --answer-tokens 5 --beams 2 --no-repeat-ngram 1"),
              0)
        << output_;
    EXPECT_NE(output_.find("2 beams with scores apart"), std::string::npos) << output_;
    EXPECT_NE(output_.find("rougeL"), std::string::npos) << output_;
}

/// Two files may have one name in two folders, and questions of all lengths.
TEST_F(DataCommands, FilesOfOneNameStayApartAndBytesAreTheirMean) {
    std::filesystem::create_directories(path("more"));
    std::ofstream(path("more/own.jsonl"))
        << Json{{"prompt", "a"}, {"references", {"b"}}} << "\n"
        << Json{{"prompt", std::string(60, 'x')}, {"references", {"b"}}} << "\n";
    const std::string lanes = data("own.jsonl") + data("more/own.jsonl") +
                              " --answer-tokens 3 --bounds 0 --lane full --lane window:budget=20";
    ASSERT_EQ(run("eval" + model() + lanes + " --json --answers '" + path("said.jsonl") + "'"), 0) << output_;
    const Json eval = Json::parse(output_).at("lanes");
    EXPECT_EQ(eval[0].at("task"), "own");
    EXPECT_EQ(eval[2].at("task"), "own-2");
    std::map<std::pair<std::string, int>, int> answers;
    std::istringstream said(read("said.jsonl"));
    for (std::string line; std::getline(said, line);) {
        const Json json = Json::parse(line);
        ++answers[{json.at("questions"), json.at("question")}];
    }
    EXPECT_EQ(answers.size(), 5u);
    // The prompts of the second file have 2 and 61 tokens.
    EXPECT_EQ(eval[2].at("kv_bytes").get<double>() / eval[2].at("kv_peak_bytes").get<double>(), 31.5 / 61);
    EXPECT_EQ(eval[3].at("kv_bytes").get<double>() / eval[2].at("kv_bytes").get<double>(), 11 / 31.5);
    ASSERT_EQ(run("sweep" + model() + lanes + " --json --out '" + path("apart") + "'"), 0) << output_;
    const std::size_t begin = output_.find('{');
    const Json sweep = Json::parse(output_.substr(begin, output_.rfind('}') + 1 - begin)).at("lanes");
    ASSERT_EQ(sweep.size(), eval.size());
    for (std::size_t i = 0; i < eval.size(); ++i)
        EXPECT_EQ(sweep[i].at("kv_bytes"), eval[i].at("kv_bytes")) << i;
    for (const char* name : {"own", "own-2"})
        EXPECT_TRUE(std::filesystem::exists(path("apart/" + std::string(name) + "-f1.svg"))) << name;
}

TEST_F(DataCommands, ASweepGoesOnFromItsAnswers) {
    const std::string sweep =
        "sweep" + model() + data("own.jsonl") + data("two.jsonl") +
        " --answer-tokens 4 --bounds 0 --lane full --lane h2o --vary budget=4,8 --out '" + path("s") + "'";
    ASSERT_EQ(run(sweep), 0) << output_;
    const auto kept = answers("s/answers.csv"), measures = lines("s/measures.csv");
    EXPECT_EQ(kept.size(), 1u + 2 * 3 * 3);
    EXPECT_EQ(measures.size(), 1u + 3 * 5 + 3 * 3);
    EXPECT_EQ(lines("s/table.csv").size(), 1u + 2 * 3);
    for (const char* plot : {"s/own-rouge1.svg", "s/own-exact.svg", "s/two-acc_norm.svg", "s/two-acc.png"})
        EXPECT_GT(read(plot).size(), 500u) << plot;
    EXPECT_NE(read("s/own-rougeL.svg").find("ROUGE-L"), std::string::npos);
    const std::string whole = read("s/answers.csv");
    std::ofstream(path("s/answers.csv"), std::ios::binary) << whole.substr(0, whole.size() / 2);
    ASSERT_EQ(run(sweep), 0) << output_;
    EXPECT_EQ(answers("s/answers.csv"), kept);
    EXPECT_EQ(lines("s/measures.csv"), measures);
    const std::string before = read("s/answers.csv");
    ASSERT_EQ(run(sweep), 0) << output_;
    EXPECT_EQ(read("s/answers.csv"), before) << "nothing was missing";
    ASSERT_EQ(run(sweep + " --min-tokens 2"), 0) << output_;
    EXPECT_EQ(lines("s/answers.csv").size(), kept.size() + 3 * 3) << "other rules are other questions";
    EXPECT_EQ(lines("s/measures.csv").size(), measures.size() + 3 * 5);
    std::ofstream(path("s/measures.csv")) << "a,b\n";
    EXPECT_EQ(run(sweep), 1);
    EXPECT_NE(output_.find("measures.csv:1 is no line"), std::string::npos) << output_;
}

TEST_F(DataCommands, EveryPromptHasItsOwnFolderAndTrace) {
    const std::string prompts =
        " --prompt-file '" + path("one.txt") + "' --prompt-file '" + path("two.txt") + "'";
    ASSERT_EQ(run("decode" + model() + prompts + " --tokens 4 --ignore-eos --json --export run --out '" +
                  path("out") + "' --save '" + path("run.keyhole") + "'"),
              0)
        << output_;
    const Json json =
        Json::parse(output_.substr(output_.find('{'), output_.rfind('}') - output_.find('{') + 1));
    ASSERT_EQ(json.at("prompts").size(), 2u);
    for (const char* name : {"one", "two"}) {
        EXPECT_TRUE(std::filesystem::exists(path(std::string("out/") + name + "/run.json"))) << name;
        EXPECT_TRUE(std::filesystem::exists(path(std::string("run-") + name + ".keyhole"))) << name;
    }
    for (int i = 0; i < 2; ++i) {
        const std::string file = path(i == 0 ? "one.txt" : "two.txt");
        ASSERT_EQ(run("decode" + model() + " --prompt-file '" + file + "' --tokens 4 --ignore-eos --json"),
                  0);
        EXPECT_EQ(Json::parse(output_).at("lanes").at(0).at("tokens"),
                  json.at("prompts").at(i).at("lanes").at(0).at("tokens"));
        EXPECT_EQ(json.at("prompts").at(i).at("prompt_file"), file);
    }
    ASSERT_EQ(run("decode" + model() + prompts + " --tokens 2"), 0) << output_;
    EXPECT_NE(output_.find("prompt " + path("two.txt")), std::string::npos) << output_;
}

TEST_F(DataCommands, DecodeSearchesBeams) {
    const std::string decode = "decode" + model() + " --prompt 'once upon a time' --tokens 6 --lane full" +
                               " --lane h2o:budget=6 --json";
    ASSERT_EQ(run(decode + " --beams 4"), 0) << output_;
    const Json apart = Json::parse(output_).at("lanes");
    ASSERT_EQ(apart.size(), 2u);
    EXPECT_LE(apart.at(0).at("tokens").size(), 6u);
    EXPECT_EQ(apart.at(1).at("spec"), "h2o:budget=6,recent=3");
    ASSERT_EQ(run(decode + " --beams 4 --beam-scores shared"), 0) << output_;
    EXPECT_EQ(Json::parse(output_).at("lanes").at(0), apart.at(0)) << "a full cache has nothing to share";
    ASSERT_EQ(run(decode + " --no-repeat-ngram 1 --ignore-eos"), 0) << output_;
    const std::vector<int> tokens = Json::parse(output_).at("lanes").at(0).at("tokens");
    EXPECT_EQ(std::set<int>(tokens.begin(), tokens.end()).size(), tokens.size());
}

/// A window of tokens keeps the newest span, sinks the first; full loses nothing.
TEST_F(DataCommands, EvalSaysWhichSpansAreLost) {
    std::ofstream spans(path("spans.jsonl"));
    for (int i = 0; i < 2; ++i)
        spans << Json{{"system", "Answer in one word."},
                      {"context", "The fox sleeps in the old barn behind the house of the miller."},
                      {"prompt", "Where does it sleep?"},
                      {"references", {"barn"}},
                      {"spans", {{"fact", "old barn"}}},
                      {"asks_for", "fact"}}
              << "\n";
    spans.close();
    const std::string eval = "eval" + model() + data("spans.jsonl") +
                             " --answer-tokens 4 --lane full --lane window:budget=26 --by span --out '" +
                             path("s") + "'";
    ASSERT_EQ(run(eval), 0) << output_;
    EXPECT_NE(output_.find("It lost most of system: 100.0 % of its tokens are gone."), std::string::npos)
        << output_;
    ASSERT_EQ(run(eval + " --json"), 0) << output_;
    const std::size_t begin = output_.find('{');
    const Json json = Json::parse(output_.substr(begin, output_.rfind('}') + 1 - begin));
    ASSERT_EQ(json.at("spans").size(), 8u);
    for (const Json& span : json["spans"]) {
        const std::string name = span.at("span");
        const bool is_full = span.at("lane") == "full";
        EXPECT_EQ(span.at("tokens"), name == "system"    ? 19
                                     : name == "context" ? 62
                                     : name == "prompt"  ? 20
                                                         : 8);
        const double held = span.at("held"), lost = span.at("lost"), full = span.at("full_attention");
        if (name == "context" && !is_full) {  // its last bytes are in the window
            EXPECT_NEAR(held, 5.0 / 62, 1e-9);
            continue;
        }
        const bool is_whole = is_full || name == "prompt";
        EXPECT_NEAR(held, is_whole ? 1 : 0, 1e-9) << span;
        EXPECT_NEAR(lost, is_whole ? 0 : full, 1e-5) << span;
        EXPECT_GT(full, 0) << span;
        EXPECT_EQ(span.at("asked"), name == "fact" ? 2 : 0);
        EXPECT_EQ(span.contains("right"), name == "fact");
    }
    EXPECT_EQ(lines("s/by_span.csv").size(), 1u + 8);
    // A task has spans of its own.
    ASSERT_EQ(run("eval" + model() + " --task needle --samples 2 --context 300 --by span --lane full"), 0)
        << output_;
    for (const char* name : {"\ntext ", "\nquestion ", "\nanswer "})
        EXPECT_NE(output_.find(name), std::string::npos) << name << output_;
}

/// Each question asks one of four instructions; nats and right answers stand at its place.
TEST_F(DataCommands, EvalSaysWhichInstructionIsLost) {
    const std::string eval = "eval" + model() +
                             " --task instructions --samples 8 --context 500 --lane full "
                             "--lane window:budget=100 --by span --out '" +
                             path("i") + "'";
    ASSERT_EQ(run(eval + " --json"), 0) << output_;
    const std::size_t begin = output_.find('{');
    const Json json = Json::parse(output_.substr(begin, output_.rfind('}') + 1 - begin));
    std::map<std::string, int> n_asked;
    double sum = 0;
    for (const Json& span : json.at("spans")) {
        const std::string name = span.at("span"), lane = span.at("lane");
        n_asked[lane] += span.at("asked").get<int>();
        if (!name.starts_with("instruction ")) continue;
        EXPECT_EQ(span.at("held").get<double>(), lane == "full" ? 1 : 0) << "it stands at the start";
        if (lane == "full" && span.contains("nats"))
            sum += span["nats"].get<double>() * span["asked"].get<int>();
    }
    EXPECT_EQ(n_asked, (std::map<std::string, int>{{"full", 8}, {"window:budget=100", 8}}));
    double of_answers = 0;
    for (const std::vector<std::string>& fields : csv_lines(read("i/answers.csv")))
        if (fields[1] == "full") of_answers += std::stod(fields[4]);
    EXPECT_NEAR(sum, of_answers, 1e-4 * of_answers);
    const std::vector<std::vector<std::string>> table = csv_lines(read("i/by_span.csv"));
    EXPECT_EQ(table[0][12], "nats");
    ASSERT_EQ(run(eval), 0) << output_;
    EXPECT_NE(output_.find("95 %    nats"), std::string::npos) << output_;
}

/// A question is a user's turn: what is read is the text that the template writes, token by token.
TEST_F(DataCommands, EvalAsksAsAChat) {
    const std::string turn =
        "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + '|' }}{% endfor %}"
        "{{ '<|assistant|>' }}";
    std::ofstream(tiny_.folder() / "tokenizer_config.json") << Json{{"chat_template", turn}};
    const auto nats = [&](const std::string& file, const std::string& options) {
        EXPECT_EQ(run("eval" + model() + data(file) + " --json --lane full --lane window:budget=9" + options),
                  0)
            << output_;
        const std::size_t begin = output_.find('{');
        const Json json = Json::parse(output_.substr(begin, output_.rfind('}') + 1 - begin));
        return std::pair(json.at("lanes")[0].at("nats_per_token").get<double>(),
                         json["lanes"][1].at("nats_per_token").get<double>());
    };
    std::ofstream(path("chat.jsonl")) << Json{
        {"system", "Be kind."}, {"prompt", "What did it do?"}, {"choices", {"ran", "slept"}}, {"answer", 1}};
    const auto chat = nats("chat.jsonl", " --chat");
    EXPECT_NE(chat.first, nats("chat.jsonl", "").first);
    EXPECT_NE(chat.first, chat.second) << "the window evicts";
    for (const char* when : {"before", "after", "both"})
        ASSERT_EQ(
            run("eval" + model() + " --task needle --samples 2 --context 300 --chat --ask-when " + when), 0)
            << output_;
    EXPECT_NE(output_.find("as a turn of a chat"), std::string::npos) << output_;
    EXPECT_EQ(run("eval" + model() + " --task needle --chat --ask-when decoding"), 2);
    EXPECT_EQ(run("eval" + model() + " --text '" + path("one.txt") + "' --chat"), 2);
}

/// The result of a chain of reasoning is its last number; the table has the length of what lanes wrote.
TEST_F(DataCommands, TheLastNumberDecidesAndLengthsAreShown) {
    std::ofstream(path("sum.jsonl")) << Json{{"prompt", "2 + 3 ="}, {"references", {"so it is 5"}}} << "\n";
    ASSERT_EQ(run("eval" + model() + data("sum.jsonl") + " --answer-tokens 6 --until text --last-number"), 0)
        << output_;
    EXPECT_NE(output_.find("number "), std::string::npos) << output_;
    EXPECT_NE(output_.find("tokens an answer: full "), std::string::npos) << output_;
    EXPECT_NE(output_.find("right by the last number"), std::string::npos) << output_;
    EXPECT_EQ(run("eval" + model() + data("two.jsonl") + " --last-number"), 2);
    EXPECT_NE(output_.find("--last-number is for answers in own words"), std::string::npos) << output_;
    EXPECT_EQ(run("eval" + model() + " --task needle --last-number"), 2);
    EXPECT_NE(output_.find("--last-number"), std::string::npos) << output_;
}

/// A user's own questions: the first ones choose the lane, later ones compare it.
TEST_F(DataCommands, SearchTakesOtherQuestionsOfTheFile) {
    const std::string search =
        "search" + model() + " --samples 2 --lane h2o:budget=8 --vary alpha=0..1 --tries 4 --out '";
    ASSERT_EQ(run(search + path("c") + "'" + data("two.jsonl") + " --json"), 0) << output_;
    const auto json = [&] {
        const std::size_t begin = output_.find('{');
        return Json::parse(output_.substr(begin, output_.rfind('}') + 1 - begin));
    };
    EXPECT_EQ(json().at("tried"), 4);
    EXPECT_EQ(json().at("held_out").at("lanes").at(0).at("samples"), 1) << "the third of the file";
    EXPECT_TRUE(read("c/search.csv")
                    .starts_with("try,kind,kv_bytes,nats,nats_low,nats_high,right,questions,acc,acc_norm,"
                                 "acc_bytes,alpha,lane,made_by\n"))
        << read("c/search.csv");
    ASSERT_EQ(run(search + path("o") + "'" + data("own.jsonl") + " --answer-tokens 4 --json"), 0) << output_;
    double before = 1;
    for (const Json& lane : json().at("lanes")) {
        const double f1 = lane.at("measures").at("f1");
        EXPECT_LE(f1, before) << "ranked by f1";
        before = f1;
    }
    std::ofstream(path("other.jsonl")) << Json{{"prompt", "a fox ran"}, {"references", {"a b"}}} << "\n";
    ASSERT_EQ(run(search + path("h") + "'" + data("own.jsonl") + " --answer-tokens 4 --rank rougeL " +
                  "--held-out-data '" + path("other.jsonl") + "'"),
              0)
        << output_;
    EXPECT_NE(output_.find("4 lanes tried on 2 questions"), std::string::npos) << output_;
    EXPECT_NE(output_.find("rougeL %"), std::string::npos) << output_;
    for (const auto& [options, words] : std::vector<std::pair<std::string, std::string>>{
             {" --rank nats", "have no likelihood to compare"},
             {" --held-out-data '" + path("own.jsonl") + "'", "what is held out must not choose"},
             {" --rank acc", "are ranked by right, rouge1, rouge2, rougeL, exact, f1"},
             {" --samples 3", "no other questions than its first 3"}}) {
        EXPECT_EQ(
            run("search" + model() + (options.find("samples") == std::string::npos ? " --samples 2" : "") +
                " --lane h2o:budget=8 --vary alpha=0..1 --tries 4 --out '" + path("r") + "'" +
                data("own.jsonl") + options),
            2)
            << options;
        EXPECT_NE(output_.find(words), std::string::npos) << options << "\n" << output_;
    }
}

TEST_F(DataCommands, SayInALineWhatIsWrong) {
    struct Case {
        std::string arguments;
        int status;
        std::string says;
    };
    const std::string decode = "decode" + model() + " --prompt abc --tokens 2";
    for (const Case& c :
         {Case{"eval" + model() + data("bad.jsonl"), 1, "bad.jsonl:2"},
          {"eval" + model() + data("none.jsonl"), 1, "none.jsonl"},
          {"eval" + model() + data("own.jsonl") + " --task needle", 2, "leave out --task"},
          {"eval" + model() + " --task needle --stems", 2, "give --data FILE"},
          {"eval" + model() + " --task needle --beams 2", 2, "give --data FILE"},
          {"eval" + model() + data("own.jsonl") + " --shots 2", 2, "--few-shot FILE and --shots K"},
          {"eval" + model() + data("own.jsonl") + " --context 20", 2, "own.jsonl:1: prompt"},
          {"eval" + model() + data("own.jsonl") + " --beam-scores shared", 2, "--beams 2"},
          {"eval" + model() + data("own.jsonl") + " --answers '" + path("") + "'", 1, "Is a directory"},
          {"eval" + model() + data("own.jsonl") + " --answers '" + path("none/a.jsonl") + "'", 1,
           "No such file or directory"},
          {"eval" + model() + data("own.jsonl") + " --by head", 2,
           "--by head: heads are measured while a known answer is read"},
          // What no question uses is refused, not ignored.
          {"eval" + model() + data("own.jsonl") + " --seed 4", 2, "--seed draws the questions of tasks"},
          {"eval" + model() + data("own.jsonl") + " --sort nats", 2, "--sort nats: answers in own words"},
          {"eval" + model() + data("two.jsonl") + " --answer-tokens 4", 2,
           "--answer-tokens is for answers in own"},
          {"eval" + model() + data("two.jsonl") + " --until text", 2, "--until is for answers in own words"},
          {"eval" + model() + data("two.jsonl") + " --stems", 2, "--stems is for answers in own words"},
          {"eval" + model() + data("two.jsonl") + " --beams 2", 2, "--beams is for answers in own words"},
          {"eval" + model() + data("own.jsonl") + " --top 3", 2, "--top is for --by head"},
          {"eval" + model() + data("own.jsonl") + " --shards 3", 2, "--shards requires --job"},
          {decode + " --stop man", 2, "--stop is for the lanes' own answers"},
          {decode + " --stop man --export run --out '" + path("x") + "'", 2, "--stop is for the lanes' own"},
          {decode + " --last-rows 0 --out '" + path("x") + "'", 2, "--last-rows: '0'"},
          {decode + " --top-k 5", 2, "--top-k and --top-p are for sampling"},
          {decode + " --temperature 0 --top-p 0.5", 2, "--top-k and --top-p are for sampling"},
          {decode + " --early-stopping", 2, "--early-stopping are for a beam search"},
          {"eval" + model() + data("own.jsonl") + " --repetition-penalty 0", 2, "--repetition-penalty"},
          {decode + " --beams 2 --out '" + path("x") + "'", 2, "--beams prints the texts"},
          {decode + " --beams 2 --follow", 2, "--follow"},
          {decode + " --beams 2 --temperature 1", 2, "temperature"},
          {decode + " --beams 65", 2, "--beams"},
          {decode + " --lane keyformer:tau_delta=-1", 2, "tau_delta"}}) {
        EXPECT_EQ(run(c.arguments), c.status) << c.arguments << "\n" << output_;
        EXPECT_NE(output_.find(c.says), std::string::npos) << c.arguments << "\n" << output_;
        EXPECT_EQ(std::count(output_.begin(), output_.end(), '\n'), 1) << output_;
    }
    EXPECT_EQ(run("eval" + model() + data("own.jsonl") + " --answer-tokens 4 --beams 2 --beam-scores shared" +
                  " --lane h2o:pool=max"),
              2);
    EXPECT_NE(output_.find("pool=mean"), std::string::npos) << output_;
    EXPECT_EQ(run("eval" + model() + data("own.jsonl") + " --lane full --lane oracle:budget=4"), 2);
    EXPECT_NE(output_.find("read a text that is given"), std::string::npos) << output_;
    EXPECT_EQ(output_.find("--follow"), std::string::npos) << "eval has no such option: " << output_;
}

}  // namespace
}  // namespace keyhole
