/// The parts of the command table, one file each, and what their actions share. Used by *_commands.cpp and action_table.cpp alone.
/// Window thread; knows neither GL nor ImGui.
#pragma once

#include "app/actions/action_table.h"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

std::span<const UserAction> run_actions();         ///< run, time, tokens by hand
std::span<const UserAction> steer_actions();       ///< words put into the lanes' mouths, words watched
std::span<const UserAction> view_actions();        ///< what is shown of a run, and how
std::span<const UserAction> compare_actions();     ///< arrangements, and two lanes against each other
std::span<const UserAction> lane_actions();        ///< lanes and their settings
std::span<const UserAction> export_actions();      ///< files that go in and out
std::span<const UserAction> annotation_actions();  ///< undo, bookmarks, notes, recent files
std::span<const UserAction> app_actions();         ///< help

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
