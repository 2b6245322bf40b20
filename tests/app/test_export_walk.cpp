// A random walk of exports into one folder: different runs, words, lanes, formats and lanes in focus, exports
// that are ended by a signal, that fail, and files of the user's own. After each step the folder holds
// exactly the files of the last export that succeeded, each equal to that of the same export into a new
// folder, and the user's files.
#include "tests/reference/source_folder.h"
#include "tests/reference/temp_folder.h"
#include "tests/reference/tiny_model.h"

#include <gtest/gtest.h>

#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <regex>
#include <string>
#include <vector>

namespace keyhole::test_export_walk {
namespace {

namespace fs = std::filesystem;
using Files = std::map<std::string, std::string>;

class ExportWalk : public ::testing::Test {
  protected:
    std::string path(const std::string& name) const { return (temp_.path() / name).string(); }
    std::string read(const fs::path& file) const {
        std::ifstream in(file, std::ios::binary);
        return {std::istreambuf_iterator<char>(in), {}};
    }
    /// before: words of the shell ahead of the program. Returns the status; 128 and more: a signal.
    int run(const std::string& arguments, const std::string& before = "", const std::string& to = "said") {
        const std::string command = "cd '" + temp_.path().string() + "'; " + before + " '" +
                                    reference::built("keyhole") + "' " + arguments + " > " + to + " 2>&1";
        const int status = std::system(command.c_str());
        said_ = read(path("said"));
        return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    /// Returns the files of a folder. Times of steps differ from run to run.
    Files files_of(const std::string& folder) const {
        Files found;
        for (const auto& entry : fs::recursive_directory_iterator(path(folder))) {
            if (entry.is_directory()) {
                if (fs::is_empty(entry.path())) found[entry.path().string()] = "(an empty folder)";
                continue;
            }
            const std::string name = entry.path().lexically_relative(path(folder)).string();
            found[name] = read(entry.path());
            if (name.ends_with("run.json"))
                found[name] = std::regex_replace(found[name], std::regex("\"ms\":[^,}]*"), "\"ms\":0");
        }
        return found;
    }
    static std::vector<std::string> names_of(const Files& files) {
        std::vector<std::string> names;
        for (const auto& [name, bytes] : files) names.push_back(name);
        return names;
    }
    template <class T>
    const T& one_of(const std::vector<T>& all) {
        return all[random_() % all.size()];
    }
    /// Returns the words and options of an export, without the folder.
    std::string some_export() {
        static const std::vector<std::string> kWords = {"run",
                                                        "mask",
                                                        "mask-table",
                                                        "heatmap",
                                                        "attention",
                                                        "scores",
                                                        "next",
                                                        "csv",
                                                        "json",
                                                        "gif",
                                                        "view",
                                                        "view-mask",
                                                        "atlas",
                                                        "answers",
                                                        "curve:kl",
                                                        "curve:jaccard",
                                                        "tokens:1+2",
                                                        "watched:1..2",
                                                        "overlap:0-1",
                                                        "difference:1-0",
                                                        "difference-mask:0-1"};
        std::string text = one_of(sources_);
        if (random_() % 6 != 0) {
            text += " --export " + one_of(kWords);
            for (std::size_t n = random_() % 3; n > 0; --n) text += "," + one_of(kWords);
        }
        if (random_() % 2 == 0) text += " --layers 1 --heads 0,2";
        const bool draws =
            text.find("--export") == std::string::npos || text.find("view") != std::string::npos;
        if (draws && random_() % 2 == 0) text += one_of<std::string>({" --format svg", " --format png,svg"});
        if (draws && random_() % 3 == 0) text += " --focus 1";
        if (random_() % 3 == 0) text += one_of<std::string>({" --rows all", " --last-rows 2"});
        return text + " --yes";
    }
    /// Compares the folder with what it is to hold.
    void expect(const Files& wanted, const std::string& after) const {
        const Files there = files_of("walk");
        EXPECT_EQ(names_of(there), names_of(wanted)) << after;
        for (const auto& [name, bytes] : wanted)
            if (const auto it = there.find(name); it != there.end()) {
                EXPECT_TRUE(it->second == bytes) << name << " after " << after;
            }
    }

    reference::TempFolder temp_{"export-walk"};
    reference::TinyModel tiny_{reference::TinyShape{}};
    std::vector<std::string> sources_;
    std::mt19937 random_{20261125};
    std::string said_;
};

TEST_F(ExportWalk, LeavesExactlyTheLastExportAndTheUsersFiles) {
    const std::string model = " --model '" + tiny_.folder().string() + "'";
    const std::string lanes = " --ignore-eos --lane full --lane h2o:budget=6 ";
    ASSERT_EQ(run("decode" + model + lanes + "--prompt 'once upon' --tokens 6 --save a.keyhole"), 0) << said_;
    ASSERT_EQ(run("decode" + model + lanes + "--lane tova:budget=4 --prompt abc --tokens 5 --save b.keyhole"),
              0)
        << said_;
    sources_ = {"replay a.keyhole", "replay b.keyhole",
                "decode" + model + lanes + "--prompt 'a b c d' --tokens 4"};
    Files wanted;
    std::map<std::string, std::string> own;
    fs::create_directory(path("walk"));
    int n_replaced = 0, n_failed = 0, n_ended = 0;
    for (int step = 0; step < 48; ++step) {
        if (random_() % 8 == 0) {  // a file of the user's own
            const std::string name =
                one_of<std::string>({"notes.txt", "lane1/mine.csv", "view_of_mine.png", "lane0/run.json"});
            fs::create_directories(fs::path(path("walk/" + name)).parent_path());
            std::ofstream(path("walk/" + name)) << step;
            own[name] = std::to_string(step);
            wanted[name] = own[name];
        }
        const std::string what = some_export();
        fs::remove_all(path("fresh"));
        const int alone = run(what + " --out fresh");
        Files next = alone == 0 ? files_of("fresh") : wanted;
        if (alone == 0) next.insert(own.begin(), own.end());
        std::string before, after;
        std::string blocked;
        switch (random_() % 6) {
            case 0:
                before = "trap '' XFSZ; ulimit -f " + std::to_string(random_() % 40) + "; ";
                break;
            case 1:
                before = "timeout -s TERM 0.0" + std::to_string(2 + random_() % 8);
                break;
            case 2:
                before = "timeout -s KILL 0.0" + std::to_string(2 + random_() % 8);
                break;
            case 3:  // something of the user's own is where a file goes
                blocked = alone == 0 ? one_of(names_of(files_of("fresh"))) : "";
                if (!wanted.contains(blocked) && !blocked.empty()) {
                    fs::create_directories(fs::path(path("walk/" + blocked)).parent_path());
                    std::ofstream(path("walk/" + blocked)) << "mine";
                } else {
                    blocked.clear();
                }
                break;
            default:
                break;
        }
        const int status = run(what + " --out walk", before);
        const std::string happened = before + what + ": " + std::to_string(status) + " " + said_;
        if (!blocked.empty()) {
            EXPECT_EQ(read(path("walk/" + blocked)), "mine") << happened;
            EXPECT_EQ(status, 1) << happened;
            fs::remove(path("walk/" + blocked));
            std::error_code not_empty;
            fs::remove(fs::path(path("walk/" + blocked)).parent_path(), not_empty);
        }
        if (before.empty() && blocked.empty()) {
            EXPECT_EQ(status, alone) << happened;
        }
        if (status == 0) {
            n_replaced += 1;
            wanted = next;
        } else {
            (before.starts_with("timeout") ? n_ended : n_failed) += 1;
            // The next one that writes there puts back what a killed one left: here it fails at its first
            // file.
            EXPECT_EQ(
                run("replay a.keyhole --export run --out walk", "trap '' XFSZ; ulimit -f 0; ", "/dev/null"),
                1);
            // A signal may come after the last move.
            if (!before.empty() && files_of("walk") == next) wanted = next;
        }
        expect(wanted, happened);
        if (HasFailure()) return;
    }
    EXPECT_GT(n_replaced, 15);
    EXPECT_GT(n_failed, 3);
    EXPECT_GT(n_ended, 3);
}

}  // namespace
}  // namespace keyhole::test_export_walk
