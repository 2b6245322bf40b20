// Thousands of random commands with random arguments, fixed seeds: whatever a person does in whatever order, a command does its work or
// says why not, and the view stays within the run.
#include "app/window/command_table.h"
#include "engine/base/error.h"
#include "tests/window/synthetic_run.h"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <set>

namespace keyhole {
namespace {

/// Those that write files, end the program, or start what needs a model.
bool is_left_out(std::string_view id) {
    static const std::set<std::string_view> ids = {
        "quit", "screenshot", "dump-cells", "prompt", "run.restart", "recent", "open", "note", "notes.keep"};
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
    const ModelConfig& config = app.history.run().config;
    ASSERT_TRUE(view.layer >= 0 && view.layer < config.n_layers) << after;
    ASSERT_TRUE(view.head >= 0 && view.head < config.n_heads) << after;
    ASSERT_TRUE(view.lane >= 0 && view.lane < app.desk.n_lanes()) << after;
    ASSERT_TRUE(view.row >= app.first_row() && view.row <= app.last_row()) << after;
    ASSERT_TRUE(!view.pick || (view.pick->position <= view.pick->row && view.pick->row <= app.last_row()))
        << after;
    ASSERT_TRUE(!view.watched || view.watched->last <= app.last_row()) << after;
    ASSERT_TRUE(view.interface_scale >= 0.5f && view.interface_scale <= 3) << after;
    ASSERT_TRUE(view.heat.cell_width > 0 && view.heat.cell_height > 0) << after;
    ASSERT_LE(app.others.size(), 3u) << after;
}

TEST(RandomCommands, DoTheirWorkOrSayWhyNot) {
    std::vector<const UserCommand*> commands;
    for (const UserCommand& command : command_table())
        if (!is_left_out(command.id)) commands.push_back(&command);
    ASSERT_GT(commands.size(), 90u);
    std::set<std::string_view> worked;
    for (const unsigned seed : {1u, 2u, 3u}) {
        AppState app({}, {});
        app.show_records(testing::synthetic_run(
                             {.n_layers = 2, .n_prompt = 24, .n_decoded = 46, .budgets = {0, 16, 24, 8}}),
                         "");
        app.opened_file = "synthetic";
        std::mt19937 random(seed);
        for (int i = 0; i < 1500; ++i) {
            const UserCommand& command = *commands[random() % commands.size()];
            const std::string text =
                std::string(command.id) + " " +
                std::string(random() % 2 == 0 ? "" : kArguments[random() % kArguments.size()]);
            try {
                run_command(app, text);
                worked.insert(command.id);
            } catch (const Error& error) {
                ASSERT_FALSE(std::string_view(error.what()).empty()) << text;
            }
            app.refresh();
            app.remember_changes();
            if (i % 50 == 0) app.update_heat(1e6);
            expect_sound(app, fmt::format("seed {}, command {}: {}", seed, i, text));
            if (::testing::Test::HasFatalFailure()) return;
        }
    }
    // Most of them can work on an opened trace; what needs a live run has refused.
    EXPECT_GT(worked.size(), 60u);
}

}  // namespace
}  // namespace keyhole
