// Untrusted files, given to the whole program: one line, an ordinary exit status, and no output that a
// terminal interprets as a control sequence.
#include "engine/trace/trace_file.h"
#include "tests/unit/test_trace.h"
#include "tests/unit/trace_members.h"
#include "tests/window/program_run.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include <algorithm>
#include <functional>
#include <string>

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
        json["run"]["model"]["path"] = "\x1b]0;title\x07";
        for (nlohmann::json& settings : json["lane_settings"]) settings["effective"] = "full\x1b[31m";
        for (nlohmann::json& token : json["run"]["token_bytes"]) token = "1b5b33316d";
    });
    EXPECT_EQ(run("replay '" + file + "'"), 0) << output_;
    EXPECT_NE(output_.find("full?[31m"), std::string::npos) << output_;
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

// The window stays open and reports the fault of a trace, of its notes and of its own settings.
TEST_F(HostileFiles, TheWindowOutlivesThem) {
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
