#include "engine/run/prompt_file.h"

#include "engine/base/error.h"
#include "tests/reference/temp_folder.h"

#include <gtest/gtest.h>

#include <fstream>

namespace keyhole::test_prompt_file {
namespace {

class PromptFiles : public ::testing::Test {
  protected:
    PromptFile read(const std::string& bytes) {
        std::ofstream(folder_.path() / "p.txt", std::ios::binary) << bytes;
        return read_prompt_file(folder_.path() / "p.txt");
    }
    reference::TempFolder folder_{"prompt-file"};
};

TEST_F(PromptFiles, LoseOneLineEndAndAByteOrderMark) {
    EXPECT_EQ(read("Tom has\n").text, "Tom has");
    EXPECT_EQ(read("Tom has\r\n").text, "Tom has");
    EXPECT_EQ(read("Tom has\n\n").text, "Tom has\n");
    EXPECT_EQ(read("\xEF\xBB\xBFTom has\n").text, "Tom has");
    EXPECT_EQ(read("a\xEF\xBB\xBFz").text, "a\xEF\xBB\xBFz");  // not at the beginning
    EXPECT_EQ(read("\xEF\xBB").text, "\xEF\xBB");
}

TEST_F(PromptFiles, HaveAGuideBesideThem) {
    std::ofstream(folder_.path() / "p.prompt.json")
        << R"({"answer": "4821", "stop": ["."], "shows": "a code"})";
    const PromptGuide guide = read("The code\n").guide;
    EXPECT_EQ(guide.answer, "4821");
    EXPECT_EQ(guide.end.stop, std::vector<std::string>{"."});
    EXPECT_EQ(guide.shows, "a code");
    std::ofstream(folder_.path() / "p.prompt.json") << R"({"answers": "4821"})";
    EXPECT_THROW(read("The code\n"), Error);
}

}  // namespace
}  // namespace keyhole::test_prompt_file
