// What a command keeps and names where a part of it fails, and what it says of what was asked in vain.
#include "engine/base/npy.h"
#include "tests/app/program_run.h"
#include "tests/reference/tiny_model.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace keyhole::testing::test_kept_results {
namespace {

namespace fs = std::filesystem;

class KeptResults : public ProgramRun {
  protected:
    std::string model() const { return " --model '" + tiny_.folder().string() + "'"; }
    std::string decode(const std::string& tokens = "3") const {
        return "decode" + model() + " --prompt 'abc def ghi' --ignore-eos --tokens " + tokens + " ";
    }
    std::string out(const std::string& name) const { return " --out '" + path(name) + "'"; }
    void write(const std::string& name, const std::string& text) const { std::ofstream(path(name)) << text; }
    nlohmann::json json(const std::string& name) const { return nlohmann::json::parse(read(name)); }
    bool says(const std::string& what) const { return output_.find(what) != std::string::npos; }
    void expect_refused(const std::string& arguments, const std::string& what,
                        const std::string& before = "") {
        EXPECT_EQ(run(arguments, before), 2) << arguments << "\n" << output_;
        EXPECT_TRUE(says(what)) << arguments << "\n" << output_;
        EXPECT_EQ(std::count(output_.begin(), output_.end(), '\n'), 1) << output_;
    }
    reference::TinyModel tiny_{reference::TinyShape{}};
};

TEST_F(KeptResults, ATraceNeedsNoFileThatItsLanesWereMadeWith) {
    ASSERT_EQ(run(decode() + "--export queries" + out("made")), 0) << output_;
    fs::rename(path("made/lane0/queries.safetensors"), path("cal.st"));
    ASSERT_EQ(run(decode() + "--lane expected:budget=6,calibration=cal.st --save c.keyhole"), 0) << output_;
    fs::rename(path("cal.st"), path("moved.st"));
    EXPECT_EQ(run("replay c.keyhole --export view,atlas,page,run --layers 0 --heads 0" + out("x")), 0)
        << output_;
    EXPECT_EQ(run("replay c.keyhole --json"), 0) << output_;
}

}  // namespace
}  // namespace keyhole::testing::test_kept_results
