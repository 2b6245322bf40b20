#include "engine/export/staged_folder.h"

#include "engine/base/error.h"
#include "engine/base/mapped_file.h"
#include "tests/reference/temp_folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <vector>

namespace keyhole::test_staged_folder {
namespace {

namespace fs = std::filesystem;

class Staged : public ::testing::Test {
  protected:
    /// Writes an export. run.json and array.npy both hold `what`.
    static void fill(const fs::path& folder, const std::string& what) {
        fs::create_directories(folder / "lane0");
        write_text_file(folder / "lane0" / "array.npy", what);
        write_text_file(folder / "run.json", what);
    }
    std::vector<std::string> files() const {
        std::vector<std::string> names;
        for (const auto& entry : fs::recursive_directory_iterator(folder_))
            if (!entry.is_directory()) names.push_back(entry.path().lexically_relative(folder_).string());
        std::sort(names.begin(), names.end());
        return names;
    }
    std::string text(const char* name) const { return read_text_file(folder_ / name); }

    reference::TempFolder temp_{"staged"};
    const fs::path folder_ = temp_.path() / "out";
};

TEST_F(Staged, WhatIsNotPublishedLeavesTheOldAndNothingElse) {
    { const StagedFolder staged(folder_); }
    EXPECT_FALSE(fs::exists(folder_)) << "it was made for nothing";
    fill(folder_, "old");
    {
        const StagedFolder staged(folder_);
        fill(staged.path(), "new");
        EXPECT_EQ(text("run.json"), "old");
        EXPECT_EQ(text("lane0/array.npy"), "old");
    }
    EXPECT_EQ(files(), (std::vector<std::string>{"lane0/array.npy", "run.json"}));
    EXPECT_EQ(text("run.json"), "old");
}

TEST_F(Staged, PublishingReplacesFilesOfTheSameNamesAlone) {
    fill(folder_, "old");
    write_text_file(folder_ / "lane0" / "mine.txt", "mine");
    StagedFolder staged(folder_);
    fill(staged.path(), "new");
    fs::create_directory(staged.path() / "lane1");
    write_text_file(staged.path() / "lane1" / "mask.png", "new");
    staged.publish("run.json");
    EXPECT_EQ(text("run.json"), "new");
    EXPECT_EQ(text("lane0/array.npy"), "new");
    EXPECT_EQ(text("lane0/mine.txt"), "mine");
    EXPECT_EQ(text("lane1/mask.png"), "new");
}

TEST_F(Staged, WhatIsInTheWayIsFoundBeforeAnythingChanges) {
    fill(folder_, "old");
    fs::create_directory(folder_ / "lane0" / "mask.png");
    StagedFolder staged(folder_);
    fill(staged.path(), "new");
    write_text_file(staged.path() / "lane0" / "mask.png", "new");
    try {
        staged.publish("run.json");
        FAIL();
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("mask.png"), std::string::npos) << error.what();
    }
    EXPECT_EQ(text("run.json"), "old");
    EXPECT_EQ(text("lane0/array.npy"), "old");
}

TEST_F(Staged, OneExportAFolderAndTheRemainsOfAKilledOneGo) {
    std::optional<StagedFolder> first(folder_);
    try {
        const StagedFolder second(folder_);
        FAIL();
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("another Keyhole"), std::string::npos) << error.what();
    }
    first.reset();
    fill(folder_, "old");
    fs::create_directories(folder_ / "export.part" / "lane7");
    write_text_file(folder_ / "export.part" / "lane7" / "array.npy", "half");
    StagedFolder next(folder_);
    next.publish("run.json");
    EXPECT_FALSE(fs::exists(folder_ / "lane7"));
    EXPECT_EQ(text("run.json"), "old") << "none was made: the old one stays";
}

}  // namespace
}  // namespace keyhole::test_staged_folder
