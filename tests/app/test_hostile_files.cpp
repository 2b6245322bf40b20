// Untrusted files, given to the whole program: one line, an ordinary exit status, and no output that a
// terminal interprets as a control sequence.
#include "engine/trace/trace_file.h"
#include "tests/app/program_run.h"
#include "tests/reference/gguf_bytes.h"
#include "tests/unit/test_trace.h"
#include "tests/unit/trace_members.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace keyhole::testing::test_hostile_files {
namespace {

class HostileFiles : public ProgramRun {
  protected:
    std::string trace(const std::function<void(nlohmann::json&)>& change) const {
        testing_trace::Maker maker;
        maker.add_lane(0, 0);
        maker.add_lane(3, 4);
        StepList steps;
        for (int i = 0; i < 4; ++i) steps.push_back(maker.next().step);
        const std::string file = path("run.keyhole");
        write_trace(steps, file);
        nlohmann::json json = nlohmann::json::parse(testing_trace::member_of(file, "run.json"));
        change(json);
        const std::string text = json.dump();
        testing_trace::change_member(file, "run.json", &text);
        return file;
    }
    void expect_one_line(const std::string& part) const {
        EXPECT_EQ(std::count(output_.begin(), output_.end(), '\n'), 1) << output_;
        EXPECT_NE(output_.find(part), std::string::npos) << output_;
        EXPECT_EQ(output_.find("unexpected"), std::string::npos) << output_;
        EXPECT_EQ(output_.find('\x1b'), std::string::npos) << output_;
    }
};

TEST_F(HostileFiles, ATracesTextsReachNoTerminalAsCommands) {
    const std::string file = trace([](nlohmann::json& json) {
        json["run"]["model"]["path"] = "\x1b]0;title\x07\x1b[31m";
        for (nlohmann::json& token : json["run"]["token_bytes"]) token = "1b5b33316d";
    });
    EXPECT_EQ(run("replay '" + file + "'"), 0) << output_;
    EXPECT_NE(output_.find("title??[31m"), std::string::npos) << output_;
    EXPECT_EQ(output_.find('\x1b'), std::string::npos) << output_;
    EXPECT_EQ(output_.find('\a'), std::string::npos) << output_;
    EXPECT_EQ(run("replay '" + path("no\x1b[31m.keyhole") + "'"), 1);
    expect_one_line("no?[31m.keyhole");
}

TEST_F(HostileFiles, ExportsOfHostileTracesAreRefusedInALine) {
    const std::string exports =
        " --out '" + path("out") + "' --export view,gif,difference:0-1,atlas,heatmap,mask";
    EXPECT_EQ(run("replay '" + trace([](nlohmann::json&) {}) + "'" + exports), 0) << output_;
    EXPECT_EQ(run("replay '" + path("run.keyhole") + "' --look 0..inf" + exports), 2);
    EXPECT_NE(output_.find("--look: LOW..HIGH: 'inf'"), std::string::npos) << output_;
    const std::string file =
        trace([](nlohmann::json& json) { json["steps"][2]["lanes"][0]["token"] = 500'000'000; });
    EXPECT_EQ(run("replay '" + file + "'" + exports), 1);
    expect_one_line("steps[2].lanes[0].token is 500000000");
    EXPECT_EQ(run("replay '" + trace([](nlohmann::json& json) { json["steps"].clear(); }) + "'"), 1);
    expect_one_line("steps is empty");
    std::filesystem::remove(path("run.keyhole"));
    ASSERT_EQ(::mkfifo(path("run.keyhole").c_str(), 0600), 0);
    EXPECT_EQ(run("replay '" + path("run.keyhole") + "'"), 1);
    expect_one_line("a pipe");
    std::filesystem::create_symlink(path("loop"), path("loop"));
    EXPECT_EQ(run("replay '" + path("loop") + "'"), 1);
    expect_one_line("loop");
}

// What is parsed later is parsed by the reader: who finds the fault then knows neither file nor member.
TEST_F(HostileFiles, ATracesLaneSpecsAreReadWithIt) {
    for (const auto& [member, change] :
         std::initializer_list<std::pair<std::string, std::function<void(nlohmann::json&)>>>{
             {"lane_settings[1].effective",
              [](nlohmann::json& json) { json["lane_settings"][1]["effective"] = "evict 0 2"; }},
             {"lane_settings[0].effective",
              [](nlohmann::json& json) { json["lane_settings"][0]["effective"] = "full\x1b[31m"; }},
             {"lane_settings[0].spec",
              [](nlohmann::json& json) { json["lane_settings"][0]["spec"] = "h2o:budget=-3"; }},
             {"run.start.lanes[1]", [](nlohmann::json& json) {
                  json["run"]["start"] = {{"lanes", {"full", "no such lane"}},
                                          {"sampling", ""},
                                          {"follow", true},
                                          {"ignore_eos", false}};
              }}}) {
        EXPECT_EQ(run("replay '" + trace(change) + "'"), 1) << member;
        expect_one_line("run.keyhole, member run.json: " + member);
    }
}

// --- readers delete nothing ---

TEST_F(HostileFiles, ReplayLeavesWhatIsNoSpool) {
    namespace fs = std::filesystem;
    fs::create_directories(path("empty"));
    fs::create_directories(path("x.keyhole.spool"));
    const auto write = [&](const std::string& name) { std::ofstream(path(name)) << "mine"; };
    for (const char* name : {"notes.keyhole.spool", "old.keyhole.spool", "none.keyhole.spool"})
        fs::create_directories(path(name));
    write("notes.keyhole.spool/trace.part-notes.txt");
    write("old.keyhole.spool/trace.partner");
    std::ofstream(path("old.keyhole.spool/frames.bin")).flush();
    write("none.keyhole.spool/trace.part");
    for (const char* given : {"empty", "x.keyhole.spool", "x.keyhole", "notes.keyhole.spool", "notes.keyhole",
                              "old.keyhole", "none.keyhole", "."}) {
        EXPECT_EQ(run(std::string("replay '") + given + "'"), 1) << given;
        expect_one_line("holds no records");
    }
    EXPECT_TRUE(fs::is_directory(path("empty")));
    EXPECT_TRUE(fs::is_directory(path("x.keyhole.spool")));
    EXPECT_EQ(read("notes.keyhole.spool/trace.part-notes.txt"), "mine");
    EXPECT_EQ(read("old.keyhole.spool/trace.partner"), "mine");
    EXPECT_TRUE(fs::exists(path("old.keyhole.spool/frames.bin")));
    EXPECT_EQ(read("none.keyhole.spool/trace.part"), "mine");
}

// --- lessons from strangers ---

TEST_F(HostileFiles, ALessonNamesNoPath) {
    std::filesystem::create_directories(path("private"));
    std::ofstream(path("private/config.json"))
        << R"({"architectures": ["TOPSECRET"], "model_type": "topsecret"})";
    std::filesystem::create_directories(path("topsecret"));
    std::ofstream(path("topsecret/config.json")) << R"({"architectures": ["TOPSECRET"]})";
    const auto lesson = [&](const std::string& of_lesson, const std::string& of_step) {
        const nlohmann::json step = {{"text", "Look."}, {"run", {{"model", of_step}, {"prompt", "Hi"}}}};
        std::ofstream(path("l.json")) << nlohmann::json{{"version", 1},
                                                        {"title", "T"},
                                                        {"question", "Q?"},
                                                        {"run", {{"model", of_lesson}, {"prompt", "Hi"}}},
                                                        {"steps", {step}}};
    };
    const auto expect_refused = [&](const std::string& part) {
        for (const char* how : {"", " --check", " --check --json", " --print page.html"}) {
            EXPECT_NE(run(std::string("lesson l.json") + how), 0) << how;
            EXPECT_NE(output_.find(part), std::string::npos) << output_;
            EXPECT_EQ(output_.find("TOPSECRET"), std::string::npos) << output_;
            EXPECT_FALSE(std::filesystem::exists(path("page.html"))) << how;
        }
    };
    for (const std::string& model :
         {path("private"), std::string("./private"), std::string("../../../etc"), std::string("~"),
          std::string("~/x"), std::string("org/name"), std::string("private/config.json"), std::string(".."),
          std::string(), std::string("a\\b"), std::string("x\0y", 3), std::string("-x")}) {
        lesson(model, "keyhole-base");
        expect_refused("by the catalogue");
        lesson("keyhole-base", model);
        expect_refused("by the catalogue");
    }
    // A folder of that name lies here, and a lesson does not get it.
    lesson("topsecret", "topsecret");
    EXPECT_EQ(run("lesson l.json --check"), 1);
    EXPECT_NE(output_.find("the catalogue has no model 'topsecret'"), std::string::npos) << output_;
    EXPECT_NE(run("lesson l.json --print page.html"), 0);
    expect_one_line("the catalogue has no model 'topsecret'");
    EXPECT_FALSE(std::filesystem::exists(path("page.html")));
    // Who opens it may take any model; the page then says its name and not where it lies.
    lesson("keyhole-base", "keyhole-base");
    EXPECT_EQ(run("lesson l.json --print page.html --model '" + kModel + "'"), 0) << output_;
    const std::string page = read("page.html");
    EXPECT_NE(page.find("Model: keyhole-base."), std::string::npos);
    EXPECT_EQ(page.find(reference::source_folder().string()), std::string::npos);
}

TEST_F(HostileFiles, AMissingLessonIsAMissingFile) {
    std::filesystem::create_symlink(path("nowhere.json"), path("link.json"));
    for (const char* name : {"l.json", "some/where.json", "link.json", "./sinks"}) {
        EXPECT_EQ(run(std::string("lesson ") + name), 1) << name;
        expect_one_line(name);
        EXPECT_EQ(output_.find("did you mean"), std::string::npos) << output_;
    }
    EXPECT_EQ(run("lesson link.json"), 1);
    expect_one_line("a link to " + path("nowhere.json"));
    EXPECT_EQ(run("lesson lost-nedle"), 2);
    expect_one_line("did you mean 'lost-needle'");
}

// --- sizes first ---

/// A file of LLaMA's form whose q and k need copies of 1.4 GB. It takes no disk.
void write_wide_gguf(const std::string& file) {
    constexpr std::uint64_t kWidth = 4096, kNeurons = 14336, kKv = 1024, kLayers = 32;
    constexpr std::uint32_t kF32 = 0, kQ8 = 8;
    reference::GgufBytes gguf;
    std::vector<std::string> tokens;
    for (int c = 33; c < 127; ++c) tokens.emplace_back(1, static_cast<char>(c));
    for (const auto& [key, value] :
         std::initializer_list<std::pair<const char*, std::uint32_t>>{{"context_length", 8192},
                                                                      {"embedding_length", kWidth},
                                                                      {"block_count", kLayers},
                                                                      {"feed_forward_length", kNeurons},
                                                                      {"attention.head_count", 32},
                                                                      {"attention.head_count_kv", 8},
                                                                      {"rope.dimension_count", 128}})
        gguf.add(std::string("llama.") + key, value);
    gguf.add("general.architecture", "llama");
    gguf.add("llama.attention.layer_norm_rms_epsilon", 1e-5f);
    gguf.add("tokenizer.ggml.model", "gpt2");
    gguf.add("tokenizer.ggml.pre", "smollm");
    gguf.add("tokenizer.ggml.tokens", tokens);
    gguf.add("tokenizer.ggml.merges", std::vector<std::string>{});
    std::uint64_t at = 0;
    const auto tensor = [&](const std::string& name, const std::vector<std::uint64_t>& extents) {
        const std::uint64_t n = extents[0] * (extents.size() > 1 ? extents[1] : 1);
        gguf.tensor_at(name, extents, extents.size() > 1 ? kQ8 : kF32, at);
        at += (extents.size() > 1 ? n / 32 * 34 : 4 * n) + 31;
        at -= at % 32;
    };
    tensor("token_embd.weight", {kWidth, tokens.size()});
    tensor("output_norm.weight", {kWidth});
    for (std::uint64_t l = 0; l < kLayers; ++l)
        for (const auto& [name, extents] :
             std::initializer_list<std::pair<const char*, std::vector<std::uint64_t>>>{
                 {"attn_norm", {kWidth}},
                 {"attn_q", {kWidth, kWidth}},
                 {"attn_k", {kWidth, kKv}},
                 {"attn_v", {kWidth, kKv}},
                 {"attn_output", {kWidth, kWidth}},
                 {"ffn_norm", {kWidth}},
                 {"ffn_gate", {kWidth, kNeurons}},
                 {"ffn_up", {kWidth, kNeurons}},
                 {"ffn_down", {kNeurons, kWidth}}})
            tensor("blk." + std::to_string(l) + "." + name + ".weight", extents);
    const std::string head = gguf.bytes();
    std::ofstream(file, std::ios::binary) << head;
    std::filesystem::resize_file(file, (head.size() + 31) / 32 * 32 + at);
}

TEST_F(HostileFiles, AModelThatDoesNotFitIsRefusedBeforeItTakesTheMemory) {
    if (!testing::has_display()) GTEST_SKIP() << "no display";
    write_wide_gguf(path("wide.gguf"));
    const std::string limit = "ulimit -d 600000;";  // the window needs some for itself
    EXPECT_EQ(run("info --model wide.gguf --json", limit), 0) << output_;
    EXPECT_NE(output_.find("wide.gguf does not fit into memory"), std::string::npos) << output_;
    EXPECT_NE(output_.find("\"copied_bytes\": 713031680"), std::string::npos) << output_;
    for (const std::string& command :
         {std::string("decode --prompt Hi --tokens 1 --model wide.gguf"),
          std::string("eval --task needle --samples 1 --lane full --model wide.gguf"),
          std::string("gui --prompt Hi --model wide.gguf --size 800x600 --script quit.txt")}) {
        std::ofstream(path("quit.txt")) << "wait idle\nquit\n";
        EXPECT_NE(run(command, limit), 0) << command << output_;
        EXPECT_NE(output_.find("wide.gguf has weights in another order"), std::string::npos)
            << command << output_;
        EXPECT_NE(output_.find("713 MB"), std::string::npos) << command << output_;
    }
}

TEST_F(HostileFiles, APromptBeyondTheContextIsRefusedBeforeItIsEncoded) {
    {
        std::ofstream file(path("digits.txt"));
        const std::string million(1'000'000, '7');
        for (int i = 0; i < 12; ++i) file << million;
    }
    std::ofstream(path("data.jsonl"))
        << R"({"prompt": ")" << std::string(900'000, '7') << R"(", "references": ["a"]})"
        << "\n";
    const std::string limit = "ulimit -d 300000;";
    EXPECT_EQ(run("decode --prompt-file digits.txt --tokens 1", limit), 2) << output_;
    EXPECT_NE(output_.find("the prompt has 12000000 bytes, and its first "), std::string::npos) << output_;
    EXPECT_EQ(run("eval --lane full --data data.jsonl", limit), 2) << output_;
    EXPECT_NE(output_.find("data.jsonl:1: prompt: it has "), std::string::npos) << output_;
}

// --- texts in other encodings ---

TEST_F(HostileFiles, Utf16IsNoText) {
    using namespace std::string_view_literals;
    const std::string_view little = "O\0n\0c\0e\0 \0u\0p\0o\0n\0"sv, big = "\0O\0n\0c\0e\0 \0u\0p\0o\0n"sv;
    const auto write = [&](std::string_view mark, std::string_view text) {
        std::ofstream(path("p.txt"), std::ios::binary) << mark << text;
    };
    for (const auto& [mark, text, name] :
         std::initializer_list<std::tuple<std::string_view, std::string_view, std::string>>{
             {"\xff\xfe"sv, little, "UTF-16LE"},
             {"\xfe\xff"sv, big, "UTF-16BE"},
             {""sv, little, "UTF-16LE"},
             {""sv, big, "UTF-16BE"},
             {"\xff\xfe\0\0"sv, "O\0\0\0n\0\0\0"sv, "UTF-32LE"}}) {
        write(mark, text);
        for (const char* command :
             {"decode --tokens 1 --prompt-file p.txt", "decode --prompt Hi --tokens 1 --script p.txt",
              "eval --lane full --text p.txt", "eval --lane full --data p.txt", "lesson ./p.json",
              "eval --lane full --task needle --passages p.txt"}) {
            std::filesystem::copy_file(path("p.txt"), path("p.json"),
                                       std::filesystem::copy_options::overwrite_existing);
            EXPECT_NE(run(command), 0) << command << name;
            expect_one_line("it is " + name + " text");
            EXPECT_NE(output_.find("iconv -f UTF-"), std::string::npos) << output_;
        }
    }
    write("", "Caf\xe9 au lait");
    EXPECT_EQ(run("decode --tokens 1 --prompt-file p.txt"), 0) << output_;
    EXPECT_NE(output_.find("p.txt is not UTF-8 from byte 4 (0xE9) on"), std::string::npos) << output_;
    write("", "Caf\xc3\xa9 au lait");
    EXPECT_EQ(run("decode --tokens 1 --prompt-file p.txt"), 0) << output_;
    EXPECT_EQ(output_.find("UTF"), std::string::npos) << output_;
}

// --- links and pipes ---

TEST_F(HostileFiles, ALinkToNowhereStaysALinkAndGetsItsFile) {
    namespace fs = std::filesystem;
    for (const char* name : {"run.keyhole", "answers.csv", "page.html", "atlas.svg"})
        fs::create_symlink(path("there/" + std::string(name)), path(name));
    const std::string decode = "decode --prompt Hi --tokens 2 --save run.keyhole";
    EXPECT_EQ(run(decode), 1);
    EXPECT_NE(output_.find("run.keyhole"), std::string::npos) << output_;
    EXPECT_EQ(run("lesson 1 --model keyhole-base --print page.html"), 1);
    EXPECT_NE(output_.find("a link to " + path("there/page.html") + ": No such file"), std::string::npos)
        << output_;
    fs::create_directory(path("there"));
    EXPECT_EQ(run(decode), 0) << output_;
    EXPECT_EQ(run("lesson 1 --model keyhole-base --print page.html"), 0) << output_;
    std::ofstream(path("data.jsonl")) << R"({"prompt": "Hi", "references": ["a"]})"
                                      << "\n";
    EXPECT_EQ(run("eval --data data.jsonl --lane full --answers answers.csv"), 0) << output_;
    for (const char* name : {"run.keyhole", "page.html", "answers.csv"}) {
        EXPECT_TRUE(fs::is_symlink(path(name))) << name;
        EXPECT_TRUE(fs::is_regular_file(path("there/" + std::string(name)))) << name;
    }
    fs::create_symlink(path("nowhere"), path("s"));
    EXPECT_EQ(run("sweep --task needle --samples 1 --lane h2o --vary budget=16 --out s"), 1);
    EXPECT_NE(output_.find("s is a link to " + path("nowhere") + ", which is not there; remove the link"),
              std::string::npos)
        << output_;
}

TEST_F(HostileFiles, AScriptComesThroughAPipeToo) {
    ASSERT_EQ(::mkfifo(path("script").c_str(), 0600), 0);
    EXPECT_EQ(run("decode --prompt Hi --tokens 3 --lane full --script script", "echo '+1 fork 0' > script &"),
              0)
        << output_;
    EXPECT_NE(output_.find("lane 1"), std::string::npos) << output_;
}

// The window stays open and reports the fault of a trace, of its notes and of its own settings.
TEST_F(HostileFiles, TheWindowOutlivesThem) {
    if (!testing::has_display()) GTEST_SKIP() << "no display";
    // A normal exit: the script's end, or its error. Signals give 128 and more.
    const auto open = [&](const std::string& script) {
        std::ofstream(path("script.txt")) << "wait idle\n" << script << "\nwait idle\nquit\n";
        const int status = run(
            "gui --open '" + path("run.keyhole") + "' --size 800x600 --script '" + path("script.txt") + "'",
            "XDG_CONFIG_HOME='" + path("config") + "'");
        EXPECT_LE(status, 2) << output_;
        return status;
    };
    trace([](nlohmann::json& json) {
        for (nlohmann::json& step : json["steps"]) step["lanes"].clear();
    });
    open("");
    trace([](nlohmann::json& json) { json["steps"][1]["lanes"][0]["token"] = 1 << 30; });
    open("");
    trace([](nlohmann::json&) {});
    const auto write_bookmark = [&](const std::string& about) {
        std::ofstream(path("run.notes.json"))
            << R"({"version": 1, "notes": "x", "bookmarks": [{"name": "b", "lane": 0, "layer": 0, "head": 0,
                   "row": 7, "mode": "attention", )"
            << about << "}]}";
    };
    write_bookmark(R"("zoom": [0, 0, 10, 10])");
    EXPECT_EQ(open("bookmark.go 1"), 0) << output_;
    write_bookmark(R"("zoom": [1e308, -1e308, 1e308, 0])");
    open("bookmark.go 1");
    write_bookmark(R"("pick": [7, -5])");
    open("bookmark.go 1");
    std::filesystem::remove(path("run.notes.json"));
    std::filesystem::create_directories(path("config/keyhole"));
    std::ofstream(path("config/keyhole/window.json")) << R"({"left_width": 1e308})";
    EXPECT_EQ(open(""), 0) << output_;
}

}  // namespace
}  // namespace keyhole::testing::test_hostile_files
