/// Runs the program's window with scripts, in a folder of its own. Needs a display.
#pragma once

#include "tests/app/program_run.h"

namespace keyhole::testing {

class WindowRun : public ProgramRun {
  protected:
    void SetUp() override {
        if (!has_display()) GTEST_SKIP() << "no display";
        ProgramRun::SetUp();
    }
    void TearDown() override {
        if (!folder_.empty()) ProgramRun::TearDown();
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
};

}  // namespace keyhole::testing
