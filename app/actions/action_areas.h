/// Declares the parts of the action table, one source file each, and the helpers that their actions share.
/// Only *_actions.cpp and action_table.cpp include it. Window thread; knows neither GL nor ImGui.
#pragma once

#include "app/actions/action_table.h"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

std::span<const UserAction> run_actions();          ///< run, time, tokens by hand
std::span<const UserAction> steer_actions();        ///< forced tokens and the watched words
std::span<const UserAction> story_actions();        ///< what the story view offers
std::span<const UserAction> view_actions();         ///< the parts of a run to show, and how to draw them
std::span<const UserAction> compare_actions();      ///< arrangements, and the comparison of two lanes
std::span<const UserAction> lane_actions();         ///< lanes and their settings
std::span<const UserAction> export_actions();       ///< files to write and to open
std::span<const UserAction> annotation_actions();   ///< undo, bookmarks, notes, recent files
std::span<const UserAction> dialog_actions();       ///< the dialogs whose actions only open them
std::span<const UserAction> lesson_actions();       ///< lessons
std::span<const UserAction> paper_actions();        ///< figures of the papers
std::span<const UserAction> attribution_actions();  ///< what eviction costs, part by part
std::span<const UserAction> app_actions();          ///< help

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
/// Returns the speed that a digit key sets, in steps a second; 0: no limit.
double speed_of_digit(int digit);
/// Copies a text to the clipboard and says so.
void copy_text(AppState& app, std::string text);

/// What actions lack: each returns why they cannot run now; "" if they can.
namespace need {
std::string_view steps(const AppState& app);     ///< a run with a step, live or opened
std::string_view live_run(const AppState& app);  ///< a run that can go on
std::string_view pick(const AppState& app);
std::string_view pick_of_live_run(const AppState& app);
std::string_view lanes(const AppState& app);
std::string_view two_lanes(const AppState& app);
std::string_view lesson(const AppState& app);
}  // namespace need

/// Opens a dialog, or closes it if it is open.
template <Dialog kDialog>
void open_dialog(AppState& app, std::string_view) {
    app.dialog = app.dialog == kDialog ? Dialog::none : kDialog;
    app.palette_text.clear();
}

}  // namespace keyhole
