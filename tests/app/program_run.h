/// Runs the whole program as a user does, in a folder of its own: commands on its command line. WindowRun
/// adds scripts in its window.
#pragma once

#include "engine/base/csv_field.h"
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
#include <vector>

namespace keyhole::testing {

inline const std::string kModel = reference::source_folder().string() + "/assets/models/keyhole-base";
inline const std::string kPrompt = reference::source_folder().string() + "/assets/prompts/story.txt";
inline const std::string kLanes = " --lane full --lane h2o:budget=64 --lane keyformer:budget=64,tau=1..2";

/// Mesa's software renderer then draws no pixel. They take three quarters of the time of a window there.
inline const std::string kNoPixels = "export LP_NO_RAST=1; ";

inline bool has_display() {
    return std::getenv("DISPLAY") != nullptr || std::getenv("WAYLAND_DISPLAY") != nullptr;
}

class ProgramRun : public ::testing::Test {
  protected:
    void SetUp() override {
        folder_ = std::filesystem::temp_directory_path() /
                  ("keyhole-program-" +
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
    /// Returns the lines of an answers.csv without its last field, made_by, which each command writes once.
    std::multiset<std::string> answers(const std::string& name) const {
        std::multiset<std::string> found;
        for (std::vector<std::string> fields : csv_lines(read(name))) {
            std::string line;
            fields.pop_back();
            for (const std::string& field : fields) line += csv_field(field) + ",";
            found.insert(line);
        }
        return found;
    }

    std::filesystem::path folder_;
    std::string output_;
    int limit_s_ = 240;
    bool needs_pixels_ = false;  ///< the test looks at pixels of the window
};

}  // namespace keyhole::testing
