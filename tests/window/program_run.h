/// Runs the whole program as a user does: scripts in its window and commands on its command line, in a folder
/// of its own. Needs a display.
#pragma once

#include "tests/reference/source_folder.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>

namespace keyhole::testing {

inline const std::string kModel = reference::source_folder().string() + "/assets/models/keyhole-base";
inline const std::string kPrompt = reference::source_folder().string() + "/assets/prompts/story.txt";
inline const std::string kLanes = " --lane full --lane h2o:budget=64 --lane keyformer:budget=64,tau=1..2";

/// Mesa's software renderer then draws no pixel. They take three quarters of the time of a window there.
inline const std::string kNoPixels = "export LP_NO_RAST=1; ";

class ProgramRun : public ::testing::Test {
  protected:
    void SetUp() override {
        if (std::getenv("DISPLAY") == nullptr && std::getenv("WAYLAND_DISPLAY") == nullptr)
            GTEST_SKIP() << "no display";
        folder_ = std::filesystem::temp_directory_path() /
                  ("keyhole-window-" +
                   std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()) + "-" +
                   std::to_string(::getpid()));
        std::filesystem::create_directories(folder_);
        ::setenv("XDG_DATA_HOME", path("data").c_str(), 1);  // random actions save lessons
    }
    void TearDown() override {
        ::unsetenv("XDG_DATA_HOME");
        std::filesystem::remove_all(folder_);
    }

    int run(const std::string& arguments, const std::string& before = "") {
        const std::string command = in_folder() + before + " timeout " + std::to_string(limit_s_) + " '" +
                                    reference::built("keyhole") + "' " + arguments + " > '" +
                                    path("out.txt") + "' 2>&1";
        const int status = std::system(command.c_str());
        std::ifstream file(path("out.txt"));
        std::ostringstream text;
        text << file.rdbuf();
        output_ = text.str();
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    }
    int run_script(const std::string& script, const std::string& arguments = "") {
        std::ofstream(path("script.txt")) << script;
        return run("gui --model '" + kModel + "' --prompt-file '" + kPrompt + "'" + kLanes +
                   " --size 1280x800 --script '" + path("script.txt") + "' " + arguments);
    }
    /// Runs the script with other lanes, in a window tall enough for a whole card. Returns the resulting run,
    /// which another process reads from its trace.
    nlohmann::json run_of_script(const std::string& lanes, const std::string& script) {
        std::filesystem::remove(path("run.keyhole"));
        std::ofstream(path("script.txt"))
            << script << "\nwait idle\nfile.save " << path("run.keyhole") << "\nquit\n";
        const bool has_prompt = lanes.find("--prompt-file") != std::string::npos;
        EXPECT_EQ(
            run("gui --model '" + kModel + "' " + (has_prompt ? "" : "--prompt-file '" + kPrompt + "' ") +
                lanes + " --size 1600x1180 --script '" + path("script.txt") + "'"),
            0)
            << output_;
        EXPECT_EQ(run("replay '" + path("run.keyhole") + "' --export run --out '" + path("out") + "'"), 0)
            << output_;
        nlohmann::json json;
        std::ifstream(path("out/run.json")) >> json;
        return json;
    }
    std::string path(const std::string& name) const { return (folder_ / name).string(); }
    /// Begins a shell command that starts the program.
    std::string in_folder() const {
        return "cd '" + folder_.string() + "' && export KEYHOLE_PROGRESS=off; " +
               (needs_pixels_ ? "" : kNoPixels);
    }
    /// Returns what a file of the folder holds.
    std::string read(const std::string& name) const {
        std::ifstream file(path(name), std::ios::binary);
        return {std::istreambuf_iterator<char>(file), {}};
    }
    /// Returns its lines, in no order.
    std::multiset<std::string> lines(const std::string& name) const {
        std::istringstream in(read(name));
        std::multiset<std::string> found;
        for (std::string line; std::getline(in, line);) found.insert(line);
        return found;
    }

    std::filesystem::path folder_;
    std::string output_;
    int limit_s_ = 240;
    bool needs_pixels_ = false;  ///< the test looks at pixels of the window
};

}  // namespace keyhole::testing
