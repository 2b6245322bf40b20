// Errors on the command line and in scripts: one line each, before the work starts, and never a signal.
#include "engine/trace/trace_file.h"
#include "tests/app/program_run.h"
#include "tests/reference/tiny_model.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

namespace keyhole::test_command_words {
namespace {

class CommandWords : public testing::ProgramRun {
  protected:
    void SetUp() override {  // needs no display
        folder_ = std::filesystem::temp_directory_path() / ("keyhole-words-" + std::to_string(::getpid()));
        std::filesystem::create_directories(folder_);
        limit_s_ = 60;
    }
    std::string decode(const std::string& tokens = "4") const {
        return "decode --model '" + tiny_.folder().string() +
               "' --prompt 'abc def ghi' --ignore-eos --tokens " + tokens + " ";
    }
    std::string script(const std::string& text) const {
        std::ofstream(path("script.txt")) << text;
        return " --script '" + path("script.txt") + "'";
    }
    /// Expects the arguments to be refused with one line that contains `says`.
    void expect_refused(const std::string& arguments, const std::string& says, int status = 2) {
        EXPECT_EQ(run(arguments), status) << arguments << "\n" << output_;
        EXPECT_NE(output_.find(says), std::string::npos) << arguments << "\n" << output_;
        EXPECT_EQ(std::count(output_.begin(), output_.end(), '\n'), 1) << arguments << "\n" << output_;
        EXPECT_EQ(output_.find("unexpected"), std::string::npos) << output_;
    }
    reference::TinyModel tiny_{reference::TinyShape{}};
};

// As the window's own runs do: `replay` has nothing else to go by.
TEST_F(CommandWords, ASavedTraceKnowsWhatIsKnownOfItsPrompt) {
    std::ofstream(path("ask.txt")) << "abc def ghi";
    std::ofstream(path("ask.prompt.json")) << R"({"stop": [".", "x"], "answer": "quagga", "watch": "def"})";
    const std::string file = "decode --model '" + tiny_.folder().string() + "' --prompt-file '" +
                             path("ask.txt") + "' --tokens 2 --lane full --save '" + path("ask.keyhole") +
                             "'";
    const auto start = [&] { return read_trace(path("ask.keyhole")).front()->run->start; };
    const auto picture = [&](const std::string& more) {
        EXPECT_EQ(run("replay '" + path("ask.keyhole") + "' --export answers --format svg --out '" +
                      path("shown") + "'" + more),
                  0)
            << output_;
        std::ifstream in(path("shown/answers.svg"));
        return std::string{std::istreambuf_iterator<char>(in), {}};
    };
    ASSERT_EQ(run(file), 0) << output_;
    EXPECT_EQ(start().answer_end->stop, (std::vector<std::string>{".", "x"}));
    EXPECT_EQ(start().right_answer, "quagga");
    EXPECT_EQ(start().watch, "def");
    EXPECT_NE(picture("").find("quagga"), std::string::npos);
    const std::string other = picture(" --right zebu");
    EXPECT_NE(other.find("zebu"), std::string::npos);
    EXPECT_EQ(other.find("quagga"), std::string::npos);
    ASSERT_EQ(
        run(file + " --stop y --right zebu --watch 1..2 --export answers --out '" + path("asked") + "'"), 0)
        << output_;
    EXPECT_EQ(start().answer_end->stop, std::vector<std::string>{"y"});
    EXPECT_EQ(start().right_answer, "zebu");
    EXPECT_EQ(start().watch, "1..2");
}

TEST_F(CommandWords, PicturesAreWrittenAsAskedOrRefused) {
    const std::string lanes = "--lane full --lane window:budget=3 --follow --out '" + path("out") + "' ";
    ASSERT_EQ(
        run(decode() + lanes +
            "--export answers,view,mask,curve:kl --layers 0 --heads 0 --format svg,png --width 500 --look "
            "dark,cividis --right abc --save '" +
            path("run.keyhole") + "'"),
        0)
        << output_;
    for (const char* file : {"answers", "view_lane0_L0_H0", "curve_kl", "lane1/mask_L0_G0"})
        for (const char* ending : {".svg", ".png"}) {
            const std::string name = path("out/" + (file + std::string(ending)));
            ASSERT_TRUE(std::filesystem::exists(name)) << name;
            const std::string head = [&] {
                std::ifstream in(name, std::ios::binary);
                std::string bytes(300, ' ');
                in.read(bytes.data(), 300);
                return bytes;
            }();
            if (name.ends_with(".svg")) {
                EXPECT_NE(head.find(" width=\"500\""), std::string::npos) << name;
            } else {
                EXPECT_EQ(head.substr(16, 4), std::string("\0\0\1\xf4", 4)) << name;  // the width in IHDR
            }
        }
    EXPECT_FALSE(std::filesystem::exists(path("out/curve_kl.pdf")));
    expect_refused(decode() + lanes + "--width 100",
                   "--width: '100' is not a whole number from 320 to 12000");
    expect_refused(decode() + lanes + "--format eps", "'eps' is no format of pictures");
    expect_refused(decode() + lanes + "--export run --look dark", "--bare, --format and --look dark are for");
    expect_refused(decode() + lanes + "--export gif --width 500", "frames and GIFs take --look dark alone");
    expect_refused(decode() + lanes + "--export run --format svg", "name some with --export");
    expect_refused(decode() + lanes + "--export mask --look cividis",
                   "--row, --focus and --look are for views");
    expect_refused(decode() + lanes + "--export view --look bright", "'bright' is unknown; dark, ");
    EXPECT_EQ(run("replay '" + path("run.keyhole") + "' --export answers --out '" + path("again") + "'"), 2);
    EXPECT_NE(output_.find("followed lane 0"), std::string::npos) << output_;
}

TEST_F(CommandWords, NumbersAreReadWhole) {
    for (const auto& [words, says] :
         {std::pair{"--temperature nan", "--temperature: 'nan' is not a number from 0 to 100"},
          {"--temperature inf", "'inf'"},
          {"--temperature -1", "'-1'"},
          {"--top-p nan", "--top-p: 'nan' is not a number from 1e-06 to 1"},
          {"--top-p 0", "'0'"},
          {"--top-k -1", "--top-k: '-1'"},
          {"--top-k 99999999999", "'99999999999'"},
          {"--seed -1", "--seed: '-1' is not a whole number from 0 to 18446744073709551615"},
          {"--seed 1.5", "'1.5'"},
          {"--seed 18446744073709551616", "'18446744073709551616'"},
          {"--threads 1e1", "'1e1'"},
          {"--device -1", "'-1'"}})
        expect_refused(decode() + words, says);
    expect_refused(decode("0x10"), "--tokens: '0x10' is not a whole number from 1 to 16777216");
    for (const std::string tokens : {"' 4'", "+4", "''", "nan", "4.0", "2147483648"})
        expect_refused(decode(tokens), "is not a whole number from 1 to 16777216");
    EXPECT_EQ(run(decode("010") + "--temperature 0.5 --top-p 1 --seed 18446744073709551615"), 0) << output_;
    EXPECT_NE(output_.find("10 steps decoded"), std::string::npos) << output_;  // no octal number
    expect_refused("gui --size -5x-5", "--size '-5x-5'");
    for (const std::string size :
         {"0x0", "1280", "1280x", "x720", "1280x720x3", "99999x99999", "1e3x700", "nanxnan"})
        expect_refused("gui --size " + size, "--size '" + size + "'");
}

TEST_F(CommandWords, HugeNumbersOfLanesNeitherCrashNorTakeTheMemory) {
    for (const char* preset : {"full", "h2o", "tova", "key", "keyformer", "h2o:shadow=on", "full:shadow=on",
                               "h2o:dialect=released"}) {
        const std::string separator = std::string(preset).find(':') == std::string::npos ? ":" : ",";
        expect_refused(decode() + "--lane " + preset + separator + "horizon=2147483647",
                       "horizon must be from 0 to 1000000000");
        EXPECT_EQ(run(decode() + "--lane " + preset + separator + "horizon=1000000000", "ulimit -v 4000000;"),
                  0)
            << output_;
    }
    EXPECT_EQ(run(decode() + "--lane window:budget=1000000000,every=1000000000,sinks=1000000000"
                             " --lane dilated:budget=1000000000,dilation=1000000000"
                             " --lane h2o:budget=1e300%,gain=1e6,damping=1e6,tau=1e-300",
                  "ulimit -v 4000000;"),
              0)
        << output_;
}

TEST_F(CommandWords, ScriptsAreReadWholeAndBeforeTheWork) {
    expect_refused(decode() + "--script '" + path("") + "'", "it is a folder", 1);
    expect_refused(decode() + "--script '" + path("none.txt") + "'", "none.txt", 1);
    ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
    EXPECT_EQ(
        run(decode() + "--script '" + path("pipe") + "'", "echo '+1 follow on' > '" + path("pipe") + "' &"),
        0)
        << output_;
    expect_refused(decode() + "--script /dev/zero", "it is a device", 1);
    expect_refused(decode() + script("+1 follow on\n+5 follow off\n"), "script.txt:2: step ");
    expect_refused(decode() + script("+2147483647 follow off\n"), "never comes: after 4 tokens");
    expect_refused(decode() + script("+99999999999999 follow off\n"), "script.txt:1: '+99999999999999'");
    expect_refused(decode() + script("+1 sampling top_p=nan\n"), "top_p=nan");
    expect_refused(decode() + script("+1 \x1b[31mred\n"), "'?[31mred'");
    EXPECT_EQ(run(decode() + script("+4 follow off\n")), 0) << output_;
    expect_refused("gui --model x --prompt abc --script '" + path("") + "'", "it is a folder", 1);
    for (const std::string line :
         {"wait seconds nan", "wait seconds 1e9", "wait steps -1", "wait steps 1x", "wait", "deadline inf",
          "mouse 1", "mouse 1 nan", "mouse 1e300 0", "click 7", "press 2", "wheel inf", "wheel", "drop |",
          "wait steps 99999999999"})
        expect_refused("gui --model x --prompt abc" + script("wait idle\n\n" + line + "\n"),
                       "line 3 '" + line + "'");
}

TEST_F(CommandWords, ExportWordsAreCheckedBeforeTheWork) {
    const std::string to = " --out '" + path("out") + "'";
    expect_refused(decode() + "--export curve:nothing" + to, "curve:nothing: no such measure");
    expect_refused(decode() + "--export run,tokens:3+999" + to, "--export tokens: positions are 0 to");
    expect_refused(decode() + "--export watched:3..999" + to, "--export watched: positions are 0 to");
    expect_refused(decode() + "--export difference:0-1" + to, "lane 1 does not exist");
    expect_refused(decode() + "--export view --focus 3" + to, "--focus: lane 3 does not exist");
    expect_refused(decode() + "--export view --layers 99" + to, "--layers: layer 99 does not exist");
    expect_refused(decode() + "--export view --row 99999" + to, "--row 99999: the run has rows");
    expect_refused(decode() + "--export view --look 0..inf" + to, "'inf' is not a number");
    expect_refused(decode() + "--export view --look 1..1" + to, "'1..1' does not ascend");
    expect_refused(decode() + "--export view --look gamma=nan" + to, "'nan' is not a number from 0.2 to 5");
    expect_refused(decode() + "--export run --look cividis" + to, "are for views");
    expect_refused(decode() + "--export ,," + to, "--export ',,' names nothing");
    expect_refused(decode() + "--export all", "--export requires --out");
    expect_refused(decode() + "--rows all", "--rows requires --out");
    EXPECT_FALSE(std::filesystem::exists(path("out")));
}

/// Words may come with the decoded text, so that they are looked for behind it: all else is written then.
TEST_F(CommandWords, WordsThatTheTextLacksTakeNoFilesWithThem) {
    const std::string to = " --out '" + path("out") + "'";
    EXPECT_EQ(run(decode() + "--export run,curve:entropy,watched:zebra" + to), 1) << output_;
    EXPECT_NE(output_.find("--export watched: 'zebra' is not in the text; everything else is written"),
              std::string::npos)
        << output_;
    EXPECT_TRUE(std::filesystem::exists(path("out/run.json")));
    EXPECT_TRUE(std::filesystem::exists(path("out/curve_entropy.svg")));
    EXPECT_EQ(run(decode() + "--export heatmap --watch zebra" + to), 1) << output_;
    EXPECT_NE(output_.find("--watch: 'zebra' is not in the text"), std::string::npos) << output_;
    EXPECT_TRUE(std::filesystem::exists(path("out/lane0/heatmap_L0_H0.png")));
}

TEST_F(CommandWords, AForeignFileIsInTheWayBeforeTheWork) {
    const std::string to = " --out '" + path("out") + "'";
    for (const auto& [word, file] : std::map<std::string, std::string>{
             {"attention", "attention.npy"}, {"csv", "rows.csv"}, {"mask", "evicted_at.npy"}}) {
        std::filesystem::create_directories(path("out/lane0"));
        std::ofstream(path("out/lane0/" + file)) << "mine";
        expect_refused(decode() + "--export " + word + to, file + ": a file is in the way", 1);
        EXPECT_EQ(read("out/lane0/" + file), "mine");
        std::filesystem::remove_all(path("out"));
    }
}

// What a command reads is never what it writes, and a trace replaces traces alone.
TEST_F(CommandWords, NoOutputReplacesAnInputOrAForeignFile) {
    std::ofstream(path("prompt.txt")) << "abc def ghi";
    std::ofstream(path("notes.txt")) << "my notes";
    const std::string of_file = "decode --model '" + tiny_.folder().string() + "' --prompt-file '" +
                                path("prompt.txt") + "' --ignore-eos --tokens 2 ";
    const std::string save = " --save '", end = "'";
    expect_refused(of_file + save + path("prompt.txt") + end, "--save would replace " + path("prompt.txt"));
    expect_refused(of_file + script("+1 add full\n") + save + path("script.txt") + end,
                   "--save would replace");
    expect_refused(of_file + save + path("notes.txt") + end, "of that name which is no trace");
    EXPECT_EQ(read("prompt.txt"), "abc def ghi");
    EXPECT_EQ(read("notes.txt"), "my notes");
    for (int i = 0; i < 2; ++i) EXPECT_EQ(run(of_file + save + path("run.keyhole") + end), 0) << output_;
    std::ofstream(path("asked.jsonl")) << R"({"prompt": "abc", "target": "def"})"
                                       << "\n";
    const std::string eval =
        "eval --model '" + tiny_.folder().string() + "' --data '" + path("asked.jsonl") + "'";
    expect_refused(eval + " --answers '" + path("asked.jsonl") + end, "--answers would replace");
    EXPECT_TRUE(read("asked.jsonl").starts_with("{")) << "nothing was written";
    std::filesystem::create_directories(path("jobs"));
    std::ofstream(path("jobs/job.sh")) << "echo mine";
    const std::string job = eval + " --job parallel --out '" + path("jobs") + end;
    expect_refused(job, "--job would replace");
    EXPECT_EQ(read("jobs/job.sh"), "echo mine");
    std::filesystem::remove(path("jobs/job.sh"));
    for (int i = 0; i < 2; ++i) EXPECT_EQ(run(job), 0) << output_;
}

// Text, table, JSON, run.json and folders give a lane one number, also when a lane before it has left.
TEST_F(CommandWords, ALaneHasOneNumber) {
    const std::string lanes = "--lane full --lane h2o:budget=4 --lane tova:budget=4 ";
    const std::string removed = script("+2 remove 1\n") + " --out '" + path("out") + "' --export mask";
    ASSERT_EQ(run(decode() + lanes + removed), 0) << output_;
    EXPECT_NE(output_.find("lane 2  tova:budget=4"), std::string::npos) << output_;
    EXPECT_EQ(output_.find("\nlane 1  "), std::string::npos) << output_;
    EXPECT_TRUE(std::filesystem::exists(path("out/lane2/evicted_at.npy")));
    ASSERT_EQ(run(decode() + lanes + script("+2 remove 1\n") + " --json"), 0) << output_;
    const auto json = nlohmann::json::parse(output_.substr(output_.find('{')));
    ASSERT_EQ(json.at("lanes").size(), 2u);
    EXPECT_EQ(json["lanes"][1].at("lane"), 2);
    EXPECT_EQ(json["lanes"][1].at("spec"), "tova:budget=4");
}

TEST_F(CommandWords, ABudgetThatLeavesNothingToRankIsSaid) {
    ASSERT_EQ(run(decode() + "--lane full --lane snapkv:budget=8,recent=8 --lane window:budget=2"), 0)
        << output_;
    EXPECT_NE(output_.find("lane 1: the newest tokens fill the budget of 8, so nothing is ranked"),
              std::string::npos)
        << output_;
    EXPECT_EQ(output_.find("lane 2: the newest"), std::string::npos) << "a window ranks nothing anyway";
}

TEST_F(CommandWords, AScriptThatFailsSaysWhereTheStepsAre) {
    const std::string save = " --save '" + path("cut.keyhole") + "'";
    EXPECT_EQ(run(decode() + script("+2 remove 7\n") + save), 2) << output_;
    EXPECT_NE(output_.find("the steps before it are in " + path("cut.keyhole.spool")), std::string::npos)
        << output_;
    EXPECT_EQ(run("replay '" + path("cut.keyhole.spool") + "'"), 0) << output_;
}

TEST_F(CommandWords, AFileThatCannotBeMadeIsSaid) {
    const std::string out = " --export queries,run --out '" + path("out") + "'";
    EXPECT_EQ(run(decode() + "--lane full:prefill=stepwise" + out), 1) << output_;
    EXPECT_NE(output_.find("lane 0: no queries.safetensors"), std::string::npos) << output_;
    EXPECT_TRUE(std::filesystem::exists(path("out/run.json")));
}

TEST_F(CommandWords, HelpFindsSectionsByTheirWords) {
    ASSERT_EQ(run("help exports pages"), 0) << output_;
    EXPECT_TRUE(output_.find("Pages") < 40) << output_.substr(0, 200);
    expect_refused("help exports nosuch", "has no section nosuch");
    expect_refused("help lanes", "lanes-and-policies");
}

TEST_F(CommandWords, AllOfATraceIsWhatItHolds) {
    ASSERT_EQ(run(decode() + "--lane full --lane h2o:budget=4 --save '" + path("run.keyhole") + "'"), 0)
        << output_;
    const std::string replay = "replay '" + path("run.keyhole") + "' --out '" + path("all") + "' --export ";
    EXPECT_EQ(run(replay + "all"), 0) << output_;
    EXPECT_TRUE(std::filesystem::exists(path("all/lane1/scores.npy")));
    EXPECT_FALSE(std::filesystem::exists(path("all/lane1/logits.npy")));
    expect_refused(replay + "logits", "records hold no logits");
    // No row of the prompt has values in a trace; zeros would say that it attended to nothing.
    for (const std::string word : {"attention", "scores", "choice", "csv", "json", "next", "heatmap"})
        expect_refused(replay + word + " --rows all", "records hold no " + word + " of the prompt's rows");
    expect_refused(replay + "gif-scores,gif-attention --rows all", "of the prompt's rows");
    expect_refused(replay + "all --rows all", "of the prompt's rows");
    // The records of a run that did not end are not recovered for it either.
    std::filesystem::create_directories(path("cut.keyhole.spool"));
    expect_refused("replay '" + path("cut.keyhole") + "' --out o --export attention --rows all",
                   "records hold no attention of the prompt's rows");
    EXPECT_EQ(run(replay + "mask,view,run,gif --rows all"), 0) << output_;
    expect_refused(replay + "curve:nothing", "no such measure");
    expect_refused(replay + "overlap:0-2", "lane 2 does not exist");
}

TEST_F(CommandWords, AFileIsNoFolderForATrace) {
    std::ofstream(path("x.keyhole")) << "mine";
    expect_refused(decode() + "--save '" + path("x.keyhole/y.keyhole") + "'", "x.keyhole is no folder", 1);
}

TEST_F(CommandWords, OneThingIsNamedInTheSingular) {
    ASSERT_EQ(run("decode --model '" + tiny_.folder().string() + "' --prompt '' --ignore-eos --tokens 1"), 0);
    EXPECT_NE(output_.find("\nprompt of 1 token\n"), std::string::npos) << output_;
    EXPECT_NE(output_.find("\n1 step decoded\n"), std::string::npos) << output_;
}

TEST_F(CommandWords, EmptyNamesOfFilesAreRefused) {
    for (const char* words : {"decode --prompt abc --save ''", "decode --prompt abc --script ''",
                              "decode --prompt abc --out ''", "gui --open ''", "gui --script ''"})
        expect_refused(words, "the name is empty");
}

TEST_F(CommandWords, PathsThatCannotBeLookedAtAreNamed) {
    std::filesystem::create_symlink("loop", path("loop"));
    const std::string loop = path("loop"), deep = loop + "/x", longest = path(std::string(300, 'a'));
    for (const std::string& name : {loop, deep, longest}) {
        expect_refused("replay '" + name + "'", name, 1);
        expect_refused("decode --prompt abc --script '" + name + "'", name, 1);
        expect_refused("decode --prompt-file '" + name + "'", name, 1);
        expect_refused("eval --text '" + name + "' --model '" + tiny_.folder().string() + "'", name, 1);
        expect_refused("sweep --text /etc/passwd --lane h2o --vary budget=8 --model '" +
                           tiny_.folder().string() + "' --out '" + name + "'",
                       name, 1);
    }
}

}  // namespace
}  // namespace keyhole::test_command_words
