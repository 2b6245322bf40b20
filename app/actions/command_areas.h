/// Declares the parts of the command table, one source file each, and the helpers that their actions share.
/// Only *_commands.cpp and command_table.cpp include it. Window thread; knows neither GL nor ImGui.
#pragma once

#include "app/actions/command_table.h"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

std::span<const UserCommand> run_commands();      ///< run, time, tokens by hand
std::span<const UserCommand> steer_commands();    ///< forced tokens and the watched words
std::span<const UserCommand> view_commands();     ///< the parts of a run to show, and how to draw them
std::span<const UserCommand> compare_commands();  ///< arrangements, and the comparison of two lanes
std::span<const UserCommand> lane_commands();     ///< lanes and their settings
std::span<const UserCommand> export_commands();   ///< files to write and to open
std::span<const UserCommand> desk_commands();     ///< undo, bookmarks, notes, recent files
std::span<const UserCommand> app_commands();      ///< help

namespace menu {
inline constexpr std::string_view kFile = "File", kRun = "Run", kView = "View", kTime = "Time",
                                  kLanes = "Lanes", kTokens = "Token", kHelp = "Help";
}  // namespace menu

/// Parse between `at_least` and `at_most` numbers. Throw Error(wrong_use) for any other text.
std::vector<int> whole_numbers(std::string_view text, std::size_t at_least, std::size_t at_most);
std::vector<double> real_numbers(std::string_view text, std::size_t at_least, std::size_t at_most);
/// Returns true for "on", false for "off" and the opposite of `now` for an empty text. Throws
/// Error(wrong_use) otherwise.
bool on_or_off(std::string_view text, bool now);
/// Returns the configuration of the current run's model. Throws Error(wrong_use) without a run.
const ModelConfig& config_of(const AppState& app);
/// Parses a command in the engine's text form and sends it to the engine.
void engine_command(AppState& app, std::string_view verb, std::string_view arguments);
void move_time(AppState& app, int by);

/// Opens a dialog, or closes it if it is open.
template <Dialog kDialog>
void open_dialog(AppState& app, std::string_view) {
    app.dialog = app.dialog == kDialog ? Dialog::none : kDialog;
    app.palette_text.clear();
}

}  // namespace keyhole
