/// The parts of the command table, one file each, and what their actions share. Used by *_commands.cpp and command_table.cpp alone.
/// Window thread; knows neither GL nor ImGui.
#pragma once

#include "app/actions/command_table.h"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

std::span<const UserCommand> run_commands();      ///< run, time, tokens by hand
std::span<const UserCommand> steer_commands();    ///< words put into the lanes' mouths, words watched
std::span<const UserCommand> view_commands();     ///< what is shown of a run, and how
std::span<const UserCommand> compare_commands();  ///< arrangements, and two lanes against each other
std::span<const UserCommand> lane_commands();     ///< lanes and their settings
std::span<const UserCommand> export_commands();   ///< files that go in and out
std::span<const UserCommand> desk_commands();     ///< undo, bookmarks, notes, recent files
std::span<const UserCommand> app_commands();      ///< help

namespace menu {
inline constexpr std::string_view kFile = "File", kRun = "Run", kView = "View", kTime = "Time",
                                  kLanes = "Lanes", kTokens = "Token", kHelp = "Help";
}  // namespace menu

/// Throws Error(wrong_use) unless the text is so many numbers.
std::vector<int> whole_numbers(std::string_view text, std::size_t at_least, std::size_t at_most);
std::vector<double> real_numbers(std::string_view text, std::size_t at_least, std::size_t at_most);
/// "on", "off", or the other of the two without words. Throws Error(wrong_use).
bool on_or_off(std::string_view text, bool now);
/// Throws Error(wrong_use) without a run.
const ModelConfig& config_of(const AppState& app);
/// A command in the engine's text form.
void engine_command(AppState& app, std::string_view verb, std::string_view arguments);
void move_time(AppState& app, int by);

/// Opens a dialog, or closes it where it is open.
template <Dialog kDialog>
void open_dialog(AppState& app, std::string_view) {
    app.dialog = app.dialog == kDialog ? Dialog::none : kDialog;
    app.palette_text.clear();
}

}  // namespace keyhole
