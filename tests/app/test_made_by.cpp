// Every picture, table and JSON that a command writes says itself which version, command and model made it.
#include "engine/base/csv_field.h"
#include "engine/eval/answer_file.h"
#include "tests/app/program_run.h"
#include "tests/reference/gif_pictures.h"
#include "tests/reference/tiny_model.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <regex>

namespace keyhole::test_made_by {
namespace {

namespace fs = std::filesystem;

TEST(MadeBy, IsAColumnWithATextInTheFirstLine) {
    const std::string csv = "a,b\n1,\"two\nlines, \"\"q\"\"\"\n3,4\n";
    EXPECT_EQ(with_made_by(csv, "k: x, \"y\""),
              "a,b,made_by\n1,\"two\nlines, \"\"q\"\"\",\"k: x, \"\"y\"\"\"\n3,4,\n");
    EXPECT_EQ(with_made_by(csv, ""), csv);
    EXPECT_EQ(with_made_by("a\n", "k"), "a,made_by\n") << "no line, no text";
}

class MadeByWalk : public testing::ProgramRun {
  protected:
    void SetUp() override {
        ProgramRun::SetUp();
        std::ofstream(path("text.txt")) << reference::random_text(400, 3);
        std::ofstream(path("other.txt")) << reference::random_text(400, 4);
    }
    std::string with_model(const std::string& command) const {
        return command + " --model '" + tiny_.folder().string() + "'";
    }
    /// Returns a text as PDF has it: UTF-16 in hexadecimal digits.
    static std::string in_pdf(const std::string& text) {
        std::string hex;
        for (const char c : text) hex += fmt::format("00{:02X}", static_cast<unsigned char>(c));
        return hex;
    }
    /// Checks the files of a folder. Returns how many of them say what made them.
    int check(const std::string& folder, const std::string& command) {
        // Files whose form others have set.
        const std::set<std::string> others = {"config.json", "headkv.json"};
        int n = 0;
        for (const auto& entry : fs::recursive_directory_iterator(path(folder))) {
            const fs::path file = entry.path();
            const std::string ending = file.extension().string();
            if (!std::set<std::string>{".png", ".svg", ".pdf", ".csv", ".json", ".html", ".gif"}.contains(
                    ending) ||
                others.contains(file.filename().string()))
                continue;
            const std::string bytes = ending == ".gif" ? testing::gif_comment(file)
                                                       : read(file.lexically_relative(folder_).string());
            const auto has = [&](const std::string& text) {
                return bytes.find(ending == ".pdf" ? in_pdf(text) : text) != std::string::npos;
            };
            seen_.insert(ending);
            EXPECT_TRUE(has("Keyhole 0.") || has("\"version\"")) << file;
            EXPECT_TRUE(has("keyhole " + command)) << file;
            EXPECT_TRUE(has(hash_)) << file << " of model " << hash_;
            ++n;
        }
        return n;
    }
    reference::TinyModel tiny_{reference::TinyShape{}};
    std::string hash_;
    std::set<std::string> seen_;  ///< endings of files that were checked
};

TEST_F(MadeByWalk, EveryFileOfEveryCommandSaysIt) {
    const std::string text = " --text '" + path("text.txt") + "' --context 64 --samples 2";
    const std::map<std::string, std::string> commands = {
        {"eval", text + " --lane full --lane h2o:budget=8 --by head"},
        {"sweep", text + " --lane full --lane h2o --vary budget=8,16 --vary alpha=0.5,1"},
        {"attribute", text + " --lane h2o:budget=8 --budget 24 --rest 8"},
        {"search", text + " --held-out-text '" + path("other.txt") +
                       "' --lane h2o:budget=8 --vary alpha=0..1 --tries 3"},
        {"figure tova-3", text + " --vary budget=8,16"},
        {"figure a2sf-1", " --prompt-file '" + path("text.txt") + "' --tokens 2"},
        {"decode",
         " --prompt 'once upon a time' --lane full:shadow=on --lane h2o:budget=8,shadow=on "
         "--tokens 4 --export run,csv,json,mask,heatmap,scores,view,view-mask,atlas,answers,curve:kl,"
         "curve:jaccard,tokens:1+2,overlap:0-1,difference:1-0,frames,gif,gif-attention --layers 0 --heads 0 "
         "--yes "
         "--format svg,png,pdf"},
    };
    int n = 0;
    for (const auto& [command, options] : commands) {
        ASSERT_EQ(run(with_model(command) + options + " --out '" + path("out") + "'"), 0) << output_;
        if (hash_.empty()) {  // of the first: each line of answers has it
            const std::string answers = read("out/answers.csv");
            std::smatch found;
            ASSERT_TRUE(std::regex_search(answers, found, std::regex("model=([0-9a-f]{16})"))) << answers;
            hash_ = found[1];
        }
        const int of_command = check("out", command);
        EXPECT_GT(of_command, 0) << command;
        n += of_command;
        fs::remove_all(path("out"));
    }
    EXPECT_GT(n, 50);
    EXPECT_TRUE(seen_.contains(".gif"));
}

}  // namespace
}  // namespace keyhole::test_made_by
