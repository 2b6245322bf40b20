#include "engine/base/staged_folder.h"

#include "engine/base/error.h"
#include "engine/base/mapped_file.h"
#include "engine/export/export_files.h"
#include "tests/reference/temp_folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <optional>
#include <vector>

namespace keyhole::test_staged_folder {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

class Staged : public ::testing::Test {
  protected:
    /// Writes files that hold their `what`.
    static void fill(const fs::path& folder, const std::string& what, const Names& names) {
        for (const std::string& name : names) {
            fs::create_directories((folder / name).parent_path());
            write_text_file(folder / name, what);
        }
    }
    /// Returns what every file of the folder holds; "->" and the target for a link.
    std::map<std::string, std::string> all() const {
        std::map<std::string, std::string> found;
        for (const auto& entry : fs::recursive_directory_iterator(folder_)) {
            const std::string name = entry.path().lexically_relative(folder_).string();
            if (entry.is_symlink())
                found[name] = "->" + fs::read_symlink(entry.path()).string();
            else if (!entry.is_directory())
                found[name] = read_text_file(entry.path());
            else if (fs::is_empty(entry.path()))
                found[name] = "(empty folder)";
        }
        return found;
    }
    /// Publishes files that hold "new" in place of `old`, and returns the message of the refusal.
    std::string refusal(const Names& fresh, const Names& old) const {
        try {
            StagedFolder staged(folder_);
            fill(staged.path(), "new", fresh);
            staged.publish(old, "run.json");
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::io);
            return error.what();
        }
        return "";
    }

    reference::TempFolder temp_{"staged"};
    const fs::path folder_ = temp_.path() / "out";
    const Names old_ = {"lane0/array.npy", "lane1/array.npy", "run.json"};
};

TEST_F(Staged, WhatIsNotPublishedLeavesTheOldAndNothingElse) {
    { const StagedFolder staged(folder_); }
    EXPECT_FALSE(fs::exists(folder_)) << "it was made for nothing";
    fill(folder_, "old", old_);
    const auto before = all();
    {
        const StagedFolder staged(folder_);
        fill(staged.path(), "new", old_);
    }
    EXPECT_EQ(all(), before);
}

TEST_F(Staged, PublishingReplacesWhatIsOldAsAWholeAndNothingOfAUsersOwn) {
    fill(folder_, "old", old_);
    fill(folder_, "mine", {"notes.txt", "lane1/mine.npy"});
    {
        StagedFolder staged(folder_);
        fill(staged.path(), "new", {"lane0/mask.png", "run.json"});
        fs::create_directory(staged.path() / "lane7");
        EXPECT_EQ(staged.files(), (Names{"lane0/mask.png", "run.json"}));
        Names listed = old_;
        listed.insert(listed.end(), {"gone.png", "lane1/mine.npy/x"});  // are not there
        staged.publish(listed, "run.json");
    }
    EXPECT_EQ(all(), (std::map<std::string, std::string>{{"lane0/mask.png", "new"},
                                                         {"run.json", "new"},
                                                         {"notes.txt", "mine"},
                                                         {"lane1/mine.npy", "mine"}}))
        << "an empty folder is not moved in, and lane1 stays for what is in it";
}

TEST_F(Staged, FoldersThatBecomeEmptyGo) {
    fill(folder_, "old", old_);
    EXPECT_EQ(refusal({"run.json"}, old_), "");
    EXPECT_EQ(all(), (std::map<std::string, std::string>{{"run.json", "new"}}));
}

/// Whatever stands in the way is found before anything changes, and named.
TEST_F(Staged, WhatIsInTheWayStaysAndTheOldToo) {
    fill(folder_, "old", old_);
    fill(folder_, "mine", {"answers.png", "lane2"});
    fs::create_directory(folder_ / "lane0" / "mask.png");
    fs::create_directory(temp_.path() / "elsewhere");
    fs::create_directory_symlink(temp_.path() / "elsewhere", folder_ / "lane3");
    fs::create_symlink("nowhere", folder_ / "atlas.png");
    const auto before = all();
    for (const char* name :
         {"answers.png", "atlas.png", "lane0/mask.png", "lane2/array.npy", "lane3/array.npy"}) {
        const std::string said = refusal({name, "run.json"}, old_);
        EXPECT_NE(said.find(std::string(name).substr(0, 5)), std::string::npos) << said;
        EXPECT_NE(said.find("in the way"), std::string::npos) << said;
        EXPECT_EQ(all(), before) << name;
    }
    EXPECT_TRUE(fs::is_empty(temp_.path() / "elsewhere"));
}

/// A link in place of an old file is the old file: what it points to stays.
TEST_F(Staged, ALinkGoesAndItsTargetStays) {
    fill(temp_.path(), "mine", {"target"});
    fill(folder_, "old", {"run.json"});
    fs::create_symlink(temp_.path() / "target", folder_ / "view.png");
    EXPECT_EQ(refusal({"run.json", "view.png"}, {"run.json", "view.png"}), "");
    EXPECT_EQ(all(), (std::map<std::string, std::string>{{"run.json", "new"}, {"view.png", "new"}}));
    EXPECT_EQ(read_text_file(temp_.path() / "target"), "mine");
}

/// The move of a file fails in the middle, since its path becomes too long: those moved before go back.
TEST_F(Staged, AFailureInTheMiddlePutsEverythingBack) {
    constexpr std::size_t kLongest = 4095;  // of a path
    std::string deep;
    while (folder_.string().size() + deep.size() + 110 < kLongest) deep.append(100, 'd').append("/");
    deep += std::string(kLongest - 8 - folder_.string().size() - deep.size(), 'f');
    fill(folder_, "old", {"a.png", "lane0/array.npy", "run.json"});
    fs::create_directories((folder_ / deep).parent_path());
    std::ofstream(folder_ / deep) << "old";
    const auto before = all();
    const std::string said = refusal({"b.png", "lane0/array.npy", "lane4/array.npy", "run.json"},
                                     {"a.png", deep, "lane0/array.npy", "run.json"});
    EXPECT_NE(said.find("File name too long"), std::string::npos) << said.substr(0, 200);
    EXPECT_EQ(all(), before);
}

/// The states that a kill can leave: some old files set aside, some new ones moved in.
TEST_F(Staged, TheNextOnePutsBackWhatAKilledOneMoved) {
    const fs::path part = folder_ / "export.part", aside = folder_ / "export.part.old";
    for (const bool some_moved_in : {false, true}) {
        fs::remove_all(folder_);
        fill(folder_, "old", {"lane0/a.npy", "lane1/a.npy"});
        fill(folder_, "mine", {"notes.txt"});
        fill(aside / "old", "old", {"run.json", "b.png"});
        fill(part, "new", {"run.json", "lane1/a.npy"});
        fill(some_moved_in ? folder_ : part, "new", {"b.png", "lane2/a.npy"});
        if (some_moved_in) {
            fs::create_directories(aside / "old" / "lane0");
            fs::rename(folder_ / "lane0/a.npy", aside / "old" / "lane0" / "a.npy");
        }
        write_text_file(aside / "new-files", "b.png\nlane1/a.npy\nlane2/a.npy\nrun.json\nlane2/\n");
        { const StagedFolder next(folder_); }
        EXPECT_EQ(all(), (std::map<std::string, std::string>{{"run.json", "old"},
                                                             {"b.png", "old"},
                                                             {"lane0/a.npy", "old"},
                                                             {"lane1/a.npy", "old"},
                                                             {"notes.txt", "mine"}}));
    }
}

/// A kill after the last move: the new files stay.
TEST_F(Staged, WhatWasMovedInWholeStays) {
    fill(folder_, "new", {"run.json"});
    fs::create_directory(folder_ / "lane3");  // became empty
    fill(folder_ / "export.part.old" / "old", "old", {"run.json", "b.png", "lane3/a.npy"});
    EXPECT_EQ(refusal({"run.json"}, {"run.json"}), "");
    EXPECT_EQ(all(), (std::map<std::string, std::string>{{"run.json", "new"}}));
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
    fill(folder_, "old", {"run.json"});
    fill(folder_ / "export.part", "half", {"lane7/array.npy"});
    StagedFolder next(folder_);
    next.publish({}, "run.json");
    EXPECT_FALSE(fs::exists(folder_ / "lane7"));
    EXPECT_EQ(read_text_file(folder_ / "run.json"), "old");
}

TEST_F(Staged, ALinkToNowhereIsNamed) {
    fs::create_symlink("nowhere", folder_);
    EXPECT_NE(refusal({"run.json"}, {}).find("a link to nowhere, which does not exist"), std::string::npos);
}

/// Names that a folder's list brings lead nowhere else, and are those of an export.
TEST_F(Staged, AListOfFilesReachesNoOthers) {
    for (const char* name : {"run.json", "lane0/rows.csv", "a/b/c.npy", "map.caption.txt"})
        EXPECT_TRUE(is_export_name(name)) << name;
    for (const char* name : {"", "/etc/x.csv", "../x.csv", "lane0/../../x.csv", "./x.csv", "lane0/",
                             ".ssh/x.json", "notes.txt", "caption.txt", "thesis.tex", "png"})
        EXPECT_FALSE(is_export_name(name)) << name;
    fill(folder_, "mine", {"thesis.tex"});
    fill(temp_.path(), "mine", {"outside.csv"});
    write_text_file(folder_ / "run.json",
                    R"({"files": ["thesis.tex", "../outside.csv", 7, "lane0/rows.csv", "run.json"]})");
    EXPECT_EQ(files_of_export(folder_), (Names{"lane0/rows.csv", "run.json"}));
    for (const char* text : {"", "[]", "{}", R"({"files": "run.json"})", "{\"version\": 1, \"lanes\": []}"}) {
        write_text_file(folder_ / "run.json", text);
        EXPECT_THROW(files_of_export(folder_), Error) << text;
    }
}

}  // namespace
}  // namespace keyhole::test_staged_folder
