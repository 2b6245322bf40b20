// The command line as a person meets it: streamed text, progress, what a signal leaves, standard input, words
// of other programs, help and JSON.
#include "app/cli/command.h"
#include "app/cli/commands.h"
#include "app/cli/help_form.h"
#include "app/cli/progress.h"
#include "app/cli/typed_arguments.h"
#include "app/lessons/typed_prediction.h"
#include "app/window/gui_command.h"
#include "engine/base/error.h"
#include "engine/base/json_text.h"
#include "tests/app/program_run.h"
#include "tests/reference/tiny_model.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <regex>

namespace keyhole::test_terminal {
namespace {

using Json = nlohmann::json;

class Terminal : public testing::ProgramRun {
  protected:
    void SetUp() override {  // needs no display
        folder_ = std::filesystem::temp_directory_path() / ("keyhole-terminal-" + std::to_string(::getpid()));
        std::filesystem::create_directories(folder_);
    }
    std::string model() const { return "--model '" + tiny_.folder().string() + "' "; }
    std::string tiny_decode(const std::string& more = "", int n_tokens = 8) const {
        return fmt::format("decode {} --ignore-eos --tokens {} --prompt 'abc def ghi' {}", model(), n_tokens,
                           more);
    }
    /// Runs the program, and returns what it printed to stdout as JSON, without the command.
    Json json_of(const std::string& arguments, const std::string& before = "") {
        EXPECT_EQ(run(arguments + " 2> '" + path("notes.txt") + "' | cat", before), 0) << output_;
        Json json = Json::parse(output_, nullptr, false);
        if (json.is_object()) json.erase("command");
        return json;
    }
    void expect_says(const std::string& part) const {
        EXPECT_NE(output_.find(part), std::string::npos) << output_;
    }
    /// Expects one line on stderr and nothing else.
    void expect_refused(const std::string& arguments, const std::string& says) {
        EXPECT_EQ(run(arguments), 2) << arguments << "\n" << output_;
        EXPECT_EQ(std::count(output_.begin(), output_.end(), '\n'), 1) << arguments << "\n" << output_;
        EXPECT_NE(output_.find(says), std::string::npos) << arguments << "\n" << output_;
    }
    reference::TinyModel tiny_{reference::TinyShape{}};
};

// --- decode ------------------------------------------------------------------------------------------------

/// A pipe has the first words of the text while the run goes on.
TEST_F(Terminal, DecodeStreamsItsText) {
    const std::string command = in_folder() + " exec '" + reference::built("keyhole") +
                                "' decode 'Once upon a time' --ignore-eos --tokens 100000 2> /dev/null & "
                                "echo $! > '" +
                                path("pid") + "'; wait";
    std::FILE* from = ::popen(command.c_str(), "r");
    ASSERT_NE(from, nullptr);
    std::string text;
    while (text.size() < 200) {
        const int c = std::fgetc(from);
        if (c == EOF) break;
        text += static_cast<char>(c);
    }
    const pid_t pid = std::stoi(read("pid"));
    EXPECT_EQ(::kill(pid, 0), 0) << "the run was over before its text came";
    ::kill(pid, SIGKILL);
    ::pclose(from);
    EXPECT_NE(text.find("prompt of "), std::string::npos) << text;
    EXPECT_NE(text.find("\nlane 0  full\n"), std::string::npos) << text;
}

/// Token b of the tiny model is byte b, so that characters are cut between tokens.
TEST_F(Terminal, TheStreamedTextIsThatOfItsTokens) {
    const auto text_of = [](const Json& lane) {
        std::string bytes;
        for (const int token : lane["tokens"].get<std::vector<int>>())
            bytes += token < reference::kBos    ? std::string(1, static_cast<char>(token))
                     : token == reference::kBos ? "<s>"
                                                : "</s>";
        return printable_text(bytes, true);
    };
    std::ofstream(path("script.txt")) << "+2 lane 0 window:budget=3\n";  // printed at the end
    for (const char* how :
         {"--lane full", "--lane full --lane h2o:budget=4", "--lane full --script script.txt"}) {
        const std::string command = tiny_decode(std::string(how) + " --temperature 3 ", 60);
        const Json json = json_of(command + "--json");
        ASSERT_TRUE(json.is_object()) << output_;
        ASSERT_EQ(run(command), 0) << output_;
        for (std::size_t lane = 0; lane < json["lanes"].size(); ++lane)
            expect_says(fmt::format("\nlane {}  {}\n{}\n  stored ", lane,
                                    json["lanes"][lane]["spec"].get<std::string>(),
                                    text_of(json["lanes"][lane])));
    }
}

TEST_F(Terminal, DecodeSaysWhatALaneHoldsAndWhatWasCompared) {
    ASSERT_EQ(run(tiny_decode("--lane full --lane window:budget=4 --lane h2o:budget=3,budget@L0=6")), 0)
        << output_;
    // 11 tokens of prompt, or as many as the tokenizer makes of it, and 8 steps.
    std::smatch found;
    ASSERT_TRUE(std::regex_search(output_, found, std::regex("prompt of ([0-9]+) tokens"))) << output_;
    const int n = std::stoi(found[1]) + 8;
    expect_says(fmt::format("stored {0} of {0} tokens a head", n));
    expect_says(fmt::format("stored 4 of {} tokens a head", n));
    expect_says(fmt::format("stored 3 to 6 of {} tokens a head, ", n));
    expect_says("\n8 steps decoded\n");
    EXPECT_TRUE(std::regex_search(output_, std::regex("steps with lane 0's text +- +[0-8] of 8"))) << output_;
    ASSERT_EQ(run(tiny_decode("--follow --lane full --lane window:budget=4")), 0) << output_;
    expect_says("8 of 8");
}

TEST_F(Terminal, DecodeSaysWhereAFormulaGivesNoNumbersOrEqualOnes) {
    const std::string lanes =
        "--lane full --lane h2o:budget=4 "
        "--lane 'key:budget=4,choose=(position<12?position:(position-position)/0)' "
        "--lane 'key:budget=4,choose=(position*0)'";
    ASSERT_EQ(run(tiny_decode(lanes)), 0) << output_;
    expect_says(" scores are NaN, first in L0 KV head 0, and rank lowest");
    expect_says(" tokens tie at the cut");
    const Json json = json_of(tiny_decode(lanes) + " --json");
    ASSERT_TRUE(json.is_object()) << output_;
    EXPECT_FALSE(json["lanes"][0].contains("last_selection"));
    EXPECT_FALSE(json["lanes"][1].contains("last_selection")) << "no formula of the user's";
    EXPECT_GT(json["lanes"][2]["last_selection"]["nan"], 0);
    EXPECT_EQ(json["lanes"][3]["last_selection"]["nan"], 0);
    EXPECT_EQ(json["lanes"][3]["last_selection"]["tied"], json["lanes"][3]["last_selection"]["ranked"]);
}

// --- progress ----------------------------------------------------------------------------------------------

TEST(ProgressText, ALineNowAndThenAndABarOnATerminal) {
    ProgressText lines("eval", false, 10);
    EXPECT_EQ(lines.at(0, 0, ""), "");
    EXPECT_EQ(lines.at(9.9, 0.1, ""), "");
    EXPECT_EQ(lines.at(10, 0.25, "needle"), "keyhole: eval, needle: 25 %, 30 s left\n");
    EXPECT_EQ(lines.at(19, 0.5, "needle"), "");
    EXPECT_EQ(lines.at(20, 0.5, "list"), "keyhole: eval, list: 50 %, 20 s left\n");
    EXPECT_EQ(lines.at(1000, 0.5, ""), "keyhole: eval: 50 %, 17 min left\n");
    EXPECT_EQ(lines.at(1099, 0.6, ""), "") << "a long work has fewer lines";
    EXPECT_NE(lines.at(1100, 0.6, ""), "");
    ProgressText bar("eval", true, 0.1);
    EXPECT_EQ(bar.at(0, 0, ""), "eval [                              ]   0 % ");
    EXPECT_EQ(bar.at(0.05, 0.5, ""), "");
    EXPECT_EQ(bar.at(1, 0.5, ""), "eval [###############               ]  50 % ")
        << "no estimate from one second";
    EXPECT_EQ(bar.at(5, 0.01, "").find("left"), std::string::npos) << "nor from one per cent";
    EXPECT_EQ(bar.at(6, 2, ""), "eval [##############################] 100 % 0 s left");
    ProgressText none("eval", false, -1);
    EXPECT_EQ(none.at(1e6, 1, ""), "");
}

/// One progress for all tasks of a sweep: its per cents ascend once.
TEST_F(Terminal, PipedProgressIsPlainLinesAndOneForTheWhole) {
    const std::string questions = model() + "--task needle,list --samples 3 --context 400 --lane full ";
    for (const std::string& arguments :
         {"eval " + questions,
          "sweep " + questions + "--lane h2o --vary budget=16,32 --out '" + path("s") + "'"}) {
        ASSERT_EQ(run(arguments, "export KEYHOLE_PROGRESS=0;"), 0) << output_;
        EXPECT_EQ(output_.find('\r'), std::string::npos) << output_;
        std::vector<int> shares;
        const std::regex line("keyhole: (eval|sweep), (needle|list): ([0-9]+) %");
        for (std::sregex_iterator at(output_.begin(), output_.end(), line), end; at != end; ++at)
            shares.push_back(std::stoi((*at)[3]));
        EXPECT_GE(shares.size(), 4u) << output_;
        EXPECT_TRUE(std::is_sorted(shares.begin(), shares.end())) << output_;
        EXPECT_EQ(shares.empty() ? 0 : shares.back(), 100) << output_;
        EXPECT_LT(shares.empty() ? 100 : shares[shares.size() / 2 - 1], 60) << output_;
    }
    ASSERT_EQ(run("lesson --check 1 2", "export KEYHOLE_PROGRESS=0;"), 0) << output_;
    std::vector<int> shares;
    const std::regex line("keyhole: lesson --check, .*: ([0-9]+) %");
    for (std::sregex_iterator at(output_.begin(), output_.end(), line), end; at != end; ++at)
        shares.push_back(std::stoi((*at)[1]));
    EXPECT_GE(shares.size(), 4u) << output_;
    EXPECT_TRUE(std::is_sorted(shares.begin(), shares.end())) << output_;
    EXPECT_GT(shares.empty() ? 0 : shares.back(), 50) << output_;
    ASSERT_EQ(run("eval " + questions, "export KEYHOLE_PROGRESS=off;"), 0);
    EXPECT_EQ(output_.find("keyhole:"), std::string::npos) << output_;
}

// --- standard input ----------------------------------------------------------------------------------------

TEST_F(Terminal, AMinusIsStandardInput) {
    const std::string text = "abc def ghi";
    std::ofstream(path("text.txt")) << text;
    std::ofstream(path("long.txt")) << reference::random_text(300, 3);
    std::ofstream(path("script.txt")) << "+2 lane 0 window:budget=3\n";
    std::ofstream(path("data.jsonl")) << R"({"prompt": "abc", "references": ["d"]})"
                                      << "\n";
    const std::string how = "decode " + model() + "--ignore-eos --tokens 6 --lane full --json ";
    const Json typed = json_of(how + "'" + text + "'");
    ASSERT_EQ(typed["lanes"].size(), 1u) << output_;
    EXPECT_EQ(json_of(how + "--prompt '" + text + "'"), typed);
    EXPECT_EQ(json_of(how + "-p '" + text + "'"), typed);
    EXPECT_EQ(json_of(how + "-f - < '" + path("text.txt") + "'"), typed);
    EXPECT_EQ(json_of(how + "- < '" + path("text.txt") + "'"), typed);
    EXPECT_EQ(json_of(how + "--prompt-file /dev/stdin < '" + path("text.txt") + "'"), typed);
    const std::string script = "'" + text + "' --script ";
    EXPECT_EQ(json_of(how + script + "- < '" + path("script.txt") + "'"),
              json_of(how + script + "'" + path("script.txt") + "'"));
    // A pipe, which can be read only once.
    EXPECT_EQ(json_of(how + "-f -", "cat '" + path("text.txt") + "' |"), typed);
    for (const auto& [option, file] :
         {std::pair{"--context 40 --text", "long.txt"}, {"--answer-tokens 2 --data", "data.jsonl"}}) {
        const std::string eval = "eval " + model() + "--lane full --lane window:budget=4 --json " + option;
        Json of_file = json_of(eval + " '" + path(file) + "'"),
             of_input = json_of(eval + " - < '" + path(file) + "'");
        for (Json* one : {&of_file, &of_input})
            for (const char* name : {"text", "data"}) one->erase(name);
        for (Json* one : {&of_file, &of_input})
            for (const auto& [list, name] : {std::pair{"lanes", "task"}, {"floors", "questions"}})
                for (Json& each : (*one)[list]) each.erase(name);  // the file's name
        EXPECT_EQ(of_input, of_file);
        EXPECT_FALSE(of_file["lanes"].empty());
    }
    expect_refused("decode " + model() + "< '" + path("text.txt") + "'",
                   "--prompt-file - for standard input");
}

// --- words -------------------------------------------------------------------------------------------------

TEST_F(Terminal, UnknownWordsAreAnsweredWithOurs) {
    expect_refused(
        "decode 'The tortoise said' --policy window --budget 32 -n 8",
        "decode does not know --policy, --budget; write: keyhole decode \"The tortoise said\" --lane "
        "window:budget=32 --tokens 8; keyhole decode --help");
    expect_refused(
        "decode --policy H2O 'The tortoise said' --recent 8 --n-predict 4 --temp 0.5",
        "write: keyhole decode --lane h2o:recent=8 \"The tortoise said\" --tokens 4 --temperature 0.5;");
    expect_refused("decode -p x -ngl 99", "write: keyhole decode --prompt x --backend cuda;");
    expect_refused("decode --promt x", "--promt (did you mean --prompt?); write: keyhole decode --prompt x;");
    expect_refused("decode --prompt x --wombat 3 --quokka",
                   "decode does not know --wombat, --quokka; keyhole decode --help lists its options");
    expect_refused("decode x --vary budget=3", "--vary (sweep, search, figure have it)");
    expect_refused("--export run", "gui does not know --export (decode, replay, lesson have it)");
    expect_refused("decode The tortoise said", "put it in quotes: keyhole decode \"The tortoise said\"");
    expect_refused("info a b", "info does not take b; keyhole info --help");
    expect_refused("decode 'abc def' --lane full tova", "each lane has a --lane of its own: --lane tova;");
    expect_refused("eval --tasks needle", "write: keyhole eval --task needle;");
    expect_refused("--promt x", "gui does not know --promt (did you mean --prompt?)");
    expect_refused("decode --prompt", "--prompt");
    expect_refused("decod", "there is no command 'decod', did you mean 'decode'?");
    expect_refused("run smollm2-135m hello", "it is keyhole decode --model MODEL TEXT here");
    expect_refused("ls", "it is keyhole get --list here");
    expect_refused("frobnicate", "there is no command 'frobnicate'; commands are: gui ");
    expect_refused("decode x --lane fastgen", "FastGen is not built in");
    expect_refused("info smollm2", "did you mean smollm2-135m?");
    expect_refused("info no/such", "hf download no/such");
    expect_refused("lesson nosuch", "there is no lesson 'nosuch'; keyhole lesson --list");
    expect_refused("lesson lost-neddle", "did you mean 'lost-needle'?");
    // What a shell's history may hold: values that look like options, and numbers below zero.
    EXPECT_EQ(run("decode " + model() + "-p x -n8 --seed=3 --length-penalty -1"), 2) << output_;
    expect_says("--beams 2 or more");
}

TEST_F(Terminal, ShortNamesAndPositionalsAreTheLongOnes) {
    const std::string folder = "'" + tiny_.folder().string() + "'";
    const Json typed = json_of(tiny_decode("--lane window:budget=4 --seed 3 --threads 2 --json"));
    EXPECT_EQ(json_of("decode -m " + folder +
                      " -l window:budget=4 'abc def ghi' -n 8 -s 3 -t 2 --ignore-eos --json"),
              typed);
    const std::string hash = json_of("info --json " + model())["hash"];
    EXPECT_EQ(json_of("info --json " + folder)["hash"], hash);
    EXPECT_EQ(json_of("info --json", "export KEYHOLE_MODEL=" + folder + ";")["hash"], hash);
    EXPECT_EQ(json_of("info --json " + model(), "export KEYHOLE_MODEL=/no/such;")["hash"], hash);
    EXPECT_EQ(run("info", "export KEYHOLE_MODEL=/no/such;"), 2);
    expect_says("KEYHOLE_MODEL=/no/such: cannot find the model");
    const std::string version = [&] {
        EXPECT_EQ(run("--version"), 0);
        return output_;
    }();
    EXPECT_TRUE(std::regex_match(version, std::regex("[0-9]+\\.[0-9]+( \\([0-9a-f]{10}\\))?\n"))) << version;
    for (const char* word : {"-V", "version"}) {
        EXPECT_EQ(run(word), 0);
        EXPECT_EQ(output_, version);
    }
    EXPECT_EQ(typed["version"].get<std::string>() + "\n", version);
    // Without a display the window says why it does not open: the trace was read as one.
    EXPECT_NE(run("run.keyhole", "unset DISPLAY WAYLAND_DISPLAY;"), 2) << output_;
}

// --- help --------------------------------------------------------------------------------------------------

std::vector<std::string> words_of(std::string_view line) {
    std::vector<std::string> words(1);
    bool quoted = false;
    for (const char c : line) {
        if (c == '"')
            quoted = !quoted;
        else if (c == ' ' && !quoted)
            words.emplace_back();
        else
            words.back() += c;
    }
    std::erase(words, "");
    return words;
}

TEST(Help, EveryCommandHasExamplesThatItTakes) {
    const CommandLine program("keyhole", "");
    add_gui_command(program);
    add_commands(program);
    for (const CliCommand& command : program.commands()) {
        const auto examples = help_examples(command.name());
        EXPECT_GE(examples.size(), 2u) << command.name();
        for (const std::string_view line : examples) {
            const std::size_t begin = line.rfind("keyhole");
            const std::size_t at = line.starts_with("keyhole") ? 0 : begin;
            std::vector<std::string> words = words_of(line.substr(at));
            ASSERT_FALSE(words.empty()) << line;
            words.erase(words.begin());
            if (command.name() != "gui") {
                ASSERT_EQ(words.front(), command.name()) << line;
                words.erase(words.begin());
            }
            EXPECT_NO_THROW(check_typed(command, words)) << line;
        }
    }
}

TEST_F(Terminal, HelpHasGroupsValuesAndExamples) {
    for (const Json& command : json_of("help --json")["commands"]) {
        const auto name = command["name"].get<std::string>();
        ASSERT_EQ(run(name + " --help"), 0) << output_;
        expect_says("\nExamples:\n  ");
        EXPECT_FALSE(std::regex_search(output_, std::regex(" (INT|UINT|FLOAT|FILE:|TEXT:)"))) << output_;
        EXPECT_EQ(output_.find("Needs:"), std::string::npos) << output_;
        std::istringstream in(output_);
        for (std::string line; std::getline(in, line) && line != "Examples:";)
            EXPECT_LE(line.size(), 100u) << name << ": " << line;
        const auto text = command["help"].get<std::string>();
        EXPECT_TRUE(text[0] >= 'a' && text[0] <= 'z') << text;
        EXPECT_FALSE(text.substr(0, text.find(' ')).ends_with("s")) << text << ": say what to do";
        for (const Json& option : command["options"]) {
            const auto help = option["help"].get<std::string>();
            EXPECT_FALSE(help.empty()) << option;
            EXPECT_TRUE(help.empty() ||
                        !(help[0] >= 'A' && help[0] <= 'Z' && help[1] >= 'a' && help[1] <= 'z'))
                << name << ": " << help;
        }
    }
    ASSERT_EQ(run("decode --help"), 0);
    for (const char* words : {"\nModel:\n", "\nPrompt:\n", "\nLanes:\n", "\nSampling:\n", "-m,--model MODEL",
                              "-f,--prompt-file FILE", "-n,--tokens N", "-o,--out DIR", "auto|cpu|cuda"})
        expect_says(words);
}

// --- JSON --------------------------------------------------------------------------------------------------

TEST_F(Terminal, JsonNamesWhatAResultDependsOn) {
    const std::string task = model() + "--task needle --samples 2 --context 400 --seed 5 --json ";
    const Json eval = json_of("eval " + task),
               sweep = json_of("sweep " + task + "--lane h2o --vary budget=16,32 --out '" + path("s") + "'");
    for (const Json* json : {&eval, &sweep}) {
        EXPECT_EQ((*json)["task"], "needle") << *json;
        EXPECT_EQ((*json)["seed"], 5);
        EXPECT_EQ((*json)["context"], 400);
        EXPECT_EQ((*json)["ask"], "question");
        EXPECT_TRUE(json->contains("version")) << *json;
    }
    EXPECT_EQ(eval["model"], tiny_.folder().string());
    EXPECT_EQ(sweep["models"][0]["model"], tiny_.folder().string());
    const std::string trace = "'" + path("run.keyhole") + "'";
    const Json decode =
        json_of(tiny_decode("--lane full --lane h2o:budget=4 --seed 7 --json --save " + trace));
    EXPECT_EQ(decode["seed"], 7);
    EXPECT_TRUE(decode["context"].is_number());
    const Json replay = json_of("replay --json " + trace);
    for (const char* name : {"version", "model", "model_hash", "seed", "context", "prompt_tokens", "lanes"})
        EXPECT_EQ(replay[name], decode[name]) << name;
    EXPECT_EQ(json_of("get --list --json")["models"][0]["name"], "keyhole-base");
    const Json lessons = json_of("lesson --list --json")["lessons"];
    EXPECT_EQ(lessons[8]["name"], "lost-needle");
    const Json figure = json_of("figure a2sf-1 --tokens 4 --json --out '" + path("f") + "'");
    EXPECT_EQ(figure["figure"], "a2sf-1") << output_;
    EXPECT_EQ(figure["findings"].size(), 1u);
    const Json of_sweep =
        json_of("figure a2sf-3 " + model() + "--samples 2 --context 400 --json --out '" + path("g") + "'");
    EXPECT_EQ(of_sweep["figure"], "a2sf-3") << output_;
}

TEST_F(Terminal, EvalSaysThatTheFirstLaneFails) {
    const std::string task = "--task needle --samples 2 --context 400 ";
    ASSERT_EQ(run("eval " + model() + task + "--lane full --lane h2o"), 0) << output_;
    expect_says("The first lane, full, answers none of the 2 questions");
    expect_says("try --ask statement");
    ASSERT_EQ(run("eval " + model() + task + "--ask statement"), 0) << output_;
    EXPECT_EQ(output_.find("try --ask"), std::string::npos) << output_;
    ASSERT_EQ(run("eval " + task + "--lane full"), 0) << output_;
    EXPECT_EQ(output_.find("answers none"), std::string::npos) << output_;
}

// --- lessons -----------------------------------------------------------------------------------------------

TEST(TypedPrediction, OnlyANumberOfTheListIsAnAnswer) {
    Prediction choice;
    choice.choices = {"None", "Only one: TOVA", "Both"};
    choice.right = 1;
    for (const char* line : {"x", "", "0", "4", "1.5", "TOVA", "-1"})
        EXPECT_EQ(typed_prediction(choice, line), std::nullopt) << line;
    EXPECT_EQ(typed_prediction(choice, " 2 \r"), 2);
    EXPECT_EQ(prediction_answer(choice, 2, {}, {}), "Your prediction was right. It is: Only one: TOVA");
    EXPECT_EQ(prediction_answer(choice, 3, {}, {}), "Not quite. It is: Only one: TOVA");
    EXPECT_EQ(prediction_answer(choice, std::nullopt, {}, {}), "It is: Only one: TOVA");
    Prediction slider;
    slider.kind = Prediction::Kind::slider;
    slider.low = 0;
    slider.high = 100;
    const std::vector<Claim> claims(1);
    std::vector<Measured> measured(1);
    measured[0].value = 50;
    EXPECT_EQ(typed_prediction(slider, "101"), std::nullopt);
    EXPECT_TRUE(prediction_answer(slider, 59.0, claims, measured).starts_with("Your prediction was right."));
    EXPECT_TRUE(prediction_answer(slider, 61.0, claims, measured).starts_with("Not quite."));
}

TEST_F(Terminal, LessonsSayWhatIsWrong) {
    expect_refused("lesson --check --print '" + path("l.html") + "'", "leave out --list and --check");
    EXPECT_FALSE(std::filesystem::exists(path("l.html")));
    expect_refused("lesson 9 --json", "--json goes with --list or --check");
}

}  // namespace
}  // namespace keyhole::test_terminal
