// Thousands of random commands with random arguments and fixed seeds. In any order a command either does its
// work or says why not, and the view stays within the run.
#include "app/actions/action_table.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "tests/reference/synthetic_run.h"
#include "tests/reference/temp_folder.h"
#include "tests/window/window_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <set>
#include <sstream>

namespace keyhole::test_random_commands {
namespace {

/// Commands that write files, end the program, or need a model.
bool is_left_out(std::string_view id) {
    static const std::set<std::string_view> ids = {"quit",   "screenshot",  "dump-cells", "measure.end",
                                                   "prompt", "run.restart", "recent",     "open",
                                                   "note",   "notes.keep"};
    return id.starts_with("file.") || id.starts_with("bookmark") || ids.contains(id);
}

constexpr std::array<std::string_view, 24> kArguments = {"",          "0",
                                                         "1",         "2",
                                                         "-1",        "999",
                                                         "0 1",       "2 3 50",
                                                         "50 12",     "69 69",
                                                         "12 15",     "on",
                                                         "off",       "all",
                                                         "head",      "scores",
                                                         "watched",   "kl",
                                                         "0.001 0.5", "150",
                                                         "gate",      "1 h2o:budget=8",
                                                         "alpha=0.5", "explore"};

void expect_sound(const AppState& app, const std::string& after) {
    const ViewState& view = app.view;
    const ModelConfig& config = app.run.history.run().config;
    ASSERT_TRUE(view.layer >= 0 && view.layer < config.n_layers) << after;
    ASSERT_TRUE(view.head >= 0 && view.head < config.n_heads) << after;
    ASSERT_TRUE(view.lane >= 0 && view.lane < app.run.lane_editor.n_lanes())
        << after << ": lane " << view.lane << " of " << app.run.lane_editor.n_lanes();
    ASSERT_TRUE(app.other_lane() >= 0 && app.other_lane() < app.run.lane_editor.n_lanes()) << after;
    ASSERT_TRUE(view.row >= app.run.first_row() && view.row <= app.run.last_row()) << after;
    ASSERT_TRUE(!view.pick || (view.pick->position <= view.pick->row && view.pick->row <= app.run.last_row()))
        << after;
    ASSERT_TRUE(!view.watched || view.watched->last <= app.run.last_row()) << after;
    ASSERT_TRUE(view.interface_scale >= 0.5f && view.interface_scale <= 3) << after;
    ASSERT_TRUE(view.heat.cell_width > 0 && view.heat.cell_height > 0) << after;
    ASSERT_LE(app.maps.others.size(), AppState::kMostInStory) << after;
}

/// An empty folder in which this process works as long as the object exists. Lessons and policies are saved
/// there too, and not in the user's own folder.
class WorkingFolder {
  public:
    WorkingFolder() {
        std::filesystem::current_path(folder_.path());
        ::setenv("XDG_DATA_HOME", folder_.path().c_str(), 1);
    }
    ~WorkingFolder() {
        ::unsetenv("XDG_DATA_HOME");
        std::filesystem::current_path(before_);
    }
    WorkingFolder(const WorkingFolder&) = delete;
    WorkingFolder& operator=(const WorkingFolder&) = delete;

  private:
    const std::filesystem::path before_ = std::filesystem::current_path();
    const reference::TempFolder folder_{"random-commands"};
};

TEST(RandomCommands, DoTheirWorkOrSayWhyNot) {
    std::vector<const UserAction*> commands;
    for (const UserAction& command : action_table())
        if (!is_left_out(command.id)) commands.push_back(&command);
    ASSERT_GT(commands.size(), 90u);
    const WorkingFolder folder;  // exports go to relative paths of any name
    std::set<std::string_view> worked;
    for (const unsigned seed : {1u, 2u, 3u}) {
        AppState app({}, {});
        app.show_run(
            opened_run(testing::synthetic_run(
                           {.n_layers = 2, .n_prompt = 24, .n_decoded = 46, .budgets = {0, 16, 24, 8}}),
                       ""));
        app.run.opened_file = "synthetic";
        std::mt19937 random(seed);
        for (int i = 0; i < 1500; ++i) {
            const UserAction& command = *commands[random() % commands.size()];
            const std::string text =
                std::string(command.id) + " " +
                std::string(random() % 2 == 0 ? "" : kArguments[random() % kArguments.size()]);
            try {
                run_action(app, text);
                worked.insert(command.id);
            } catch (const Error& error) {
                ASSERT_FALSE(std::string_view(error.what()).empty()) << text;
            }
            app.refresh();
            app.remember_changes();
            if (i % 50 == 0) app.update_maps(1e6);
            expect_sound(app, fmt::format("seed {}, command {}: {}", seed, i, text));
            if (::testing::Test::HasFatalFailure()) return;
        }
    }
    // Most of them work on an opened trace; commands that need a live run are refused.
    EXPECT_GT(worked.size(), 60u);
}

/// Returns a script: every command in random order, then random commands and pointer movements for so many
/// seconds.
std::string random_script(unsigned seed, int n_lines, double seconds, const std::string& end_report,
                          const std::string& warm_report) {
    const std::array<std::string, 10> files = {"run.keyhole", "out",        "picture.png", "shot.png",
                                               "cells.json",  "curves.csv", "a.gif",       "prompt.txt",
                                               "model",       "nowhere/x"};
    std::mt19937 random(seed);
    std::vector<std::string> ids;
    for (const UserAction& command : action_table())
        if (command.id != "quit") ids.emplace_back(command.id);
    for (std::size_t i = ids.size(); i > 1; --i) std::swap(ids[i - 1], ids[random() % i]);
    std::ostringstream script;
    script << "wait idle\nstep 4\nwait idle\ndeadline " << seconds << "\nmeasure.begin\n";
    for (int i = 0; i < n_lines; ++i) {
        const bool all_of_them = i < static_cast<int>(ids.size());
        const auto kind = all_of_them ? 0 : random() % 20;
        if (kind < 14) {
            // A random measure.begin would restart the test's own measurement; measure.end only reports.
            std::string id = all_of_them ? ids[to_index(i)] : ids[random() % ids.size()];
            if (id == "measure.begin") id = "measure.end";
            const auto with = random() % 8;
            script << "try " << id << " "
                   << (with < 3   ? std::string()
                       : with < 7 ? std::string(kArguments[random() % kArguments.size()])
                                  : files[random() % files.size()])
                   << "\n";
        } else if (kind < 17) {
            script << "mouse " << random() % 1280 << " " << random() % 800 << "\n";
        } else if (kind == 17) {
            script << "wheel " << static_cast<int>(random() % 7) - 3 << "\n";
        } else if (kind == 18) {
            script << "try step " << random() % 12 << "\n";
        } else {
            script << "wait seconds 0.05\n";
        }
        if (i == static_cast<int>(ids.size())) script << "try measure.end " << warm_report << "\n";
    }
    // A new run starts and decodes, whatever state the commands left.
    script << "finally\ntry export.cancel\ntry ui.scale 100\ntry prompt The cat sat on the mat by the gate.\n"
           << "wait idle\nstep 3\nwait steps 3\nwait idle\nmeasure.end " << end_report << "\nquit\n";
    return script.str();
}

class RandomRun : public testing::WindowRun {};

// KEYHOLE_RANDOM_MINUTES=10 makes the test longer, KEYHOLE_RANDOM_SEED changes the order.
TEST_F(RandomRun, TheWindowTakesWhateverComes) {
    const char* minutes = std::getenv("KEYHOLE_RANDOM_MINUTES");
    const char* seed = std::getenv("KEYHOLE_RANDOM_SEED");
    const double seconds = minutes == nullptr ? 12 : 60 * std::stod(minutes);
    limit_s_ = static_cast<int>(seconds) + 300;
    // Exports may go into the folder of the model.
    std::filesystem::copy(testing::kModel, path("model"));
    std::ofstream(path("prompt.txt")) << "Once upon a time there was a cat.\n";
    std::ofstream(path("random.txt"))
        << random_script(seed == nullptr ? 1 : static_cast<unsigned>(std::stoul(seed)),
                         static_cast<int>(40 * seconds), seconds, path("end.json"), path("warm.json"));
    ASSERT_EQ(run("gui --model model --prompt-file '" + testing::kPrompt + "'" + testing::kLanes +
                      " --size 1280x800 --script '" + path("random.txt") + "'",
                  "cd '" + folder_.string() + "' &&"),
              0)
        << output_;
    nlohmann::json end, warm;
    std::ifstream(path("end.json")) >> end;
    RecordProperty("frames", end["frames"].get<int>());
    EXPECT_GT(end["frames"], 10);
    EXPECT_LE(end["record_bytes"].get<double>(), end["record_budget_bytes"].get<double>());
    EXPECT_LT(end["texture_bytes"], 300e6);
#ifndef __SANITIZE_ADDRESS__
    EXPECT_LT(end["longest_cpu_ms"], 1000) << "the window's thread was held up";
    if (std::filesystem::exists(path("warm.json"))) {  // a slow machine may not reach it
        std::ifstream(path("warm.json")) >> warm;
        EXPECT_LT(end["resident_bytes"].get<double>() - warm["resident_bytes"].get<double>(), 900e6)
            << "it leaks";
    }
#endif
    std::printf("%d frames in %.0f s, longest %.0f ms of processor time, %.0f MB resident\n",
                end["frames"].get<int>(), end["seconds"].get<double>(), end["longest_cpu_ms"].get<double>(),
                1e-6 * end["resident_bytes"].get<double>());
}

}  // namespace
}  // namespace keyhole::test_random_commands
