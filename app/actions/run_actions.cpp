#include "app/actions/action_areas.h"

#include "app/actions/history_actions.h"
#include "engine/base/error.h"

#include <algorithm>
#include <array>

namespace keyhole {

namespace {

using namespace key;

constexpr std::array<double, 10> kSpeeds = {0, 1, 2, 3, 5, 8, 12, 20, 35, 60};  // rows per second, by digit

void step_or_forward(AppState& app, int n_rows) {
    if (app.view.row < app.last_row())
        move_time(app, n_rows);
    else
        app.step(n_rows);
}

template <int kDigit>
void set_speed_digit(AppState& app, std::string_view) {
    app.set_speed(kSpeeds[kDigit]);
    app.say(kDigit == 0 ? "speed: as fast as it goes"
                        : fmt::format("speed: {} rows a second", kSpeeds[kDigit]));
}

void set_prompt(AppState& app, std::string_view text) {
    if (text.empty()) fail(ErrorCode::wrong_use, "a prompt needs text");
    app.setup.prompt = text;
    app.start();
}

void evict_token(AppState& app, std::string_view arguments) {
    touch_token(app, "evict", arguments);
}
void pin_token(AppState& app, std::string_view arguments) {
    touch_token(app, "pin", arguments);
}
void unpin_token(AppState& app, std::string_view arguments) {
    touch_token(app, "unpin", arguments);
}

constexpr std::array kTable = {
    UserAction{"run.toggle",
               menu::kRun,
               "Run or stop",
               "Decodes until stopped.",
               {' ', 0},
               [](AppState& app, std::string_view) { app.stoppable() ? app.stop(true) : app.play(); }},
    UserAction{"run.play",
               "",
               "Run",
               "Decodes until stopped.",
               {},
               [](AppState& app, std::string_view) { app.play(); }},
    UserAction{
        "run.stop",
        "",
        "Stop",
        "Stops after the present row; a lane that runs again from the prompt stays as it was, a prompt "
        "is given up.",
        {},
        [](AppState& app, std::string_view) { app.stop(true); }},
    UserAction{
        "step",
        "",
        "Decode rows",
        "[N]: decodes N rows, 1 without.",
        {},
        [](AppState& app, std::string_view a) { app.step(a.empty() ? 1 : whole_numbers(a, 1, 1)[0]); }},
    UserAction{"run.step",
               menu::kRun,
               "One row on",
               "Forward in time; at the newest row it decodes one.",
               {kRight, 0},
               [](AppState& app, std::string_view) { step_or_forward(app, 1); }},
    UserAction{"run.step10",
               menu::kRun,
               "Ten rows on",
               "Forward in time; at the newest row it decodes ten.",
               {kRight, kShift},
               [](AppState& app, std::string_view) { step_or_forward(app, 10); }},
    UserAction{"run.restart",
               menu::kRun,
               "Restart from the prompt",
               "Processes the prompt again with the lanes as they are set.",
               {'R', kCtrl},
               [](AppState& app, std::string_view) {
                   if (app.lane_editor.n_lanes() > 0) app.setup.lanes = app.lane_editor.lanes();
                   app.start();
               }},
    UserAction{"prompt", "", "Set the prompt", "TEXT: starts a run with this prompt.", {}, set_prompt},
    UserAction{"run.speed0", "", "Speed: as fast as it goes", "", {'0', 0}, set_speed_digit<0>},
    UserAction{"run.speed1", "", "Speed: 1 row a second", "", {'1', 0}, set_speed_digit<1>},
    UserAction{"run.speed2", "", "Speed: 2 rows a second", "", {'2', 0}, set_speed_digit<2>},
    UserAction{"run.speed3", "", "Speed: 3 rows a second", "", {'3', 0}, set_speed_digit<3>},
    UserAction{"run.speed4", "", "Speed: 5 rows a second", "", {'4', 0}, set_speed_digit<4>},
    UserAction{"run.speed5", "", "Speed: 8 rows a second", "", {'5', 0}, set_speed_digit<5>},
    UserAction{"run.speed6", "", "Speed: 12 rows a second", "", {'6', 0}, set_speed_digit<6>},
    UserAction{"run.speed7", "", "Speed: 20 rows a second", "", {'7', 0}, set_speed_digit<7>},
    UserAction{"run.speed8", "", "Speed: 35 rows a second", "", {'8', 0}, set_speed_digit<8>},
    UserAction{"run.speed9", "", "Speed: 60 rows a second", "", {'9', 0}, set_speed_digit<9>},
    UserAction{"time.back",
               menu::kTime,
               "One row back",
               "",
               {kLeft, 0},
               [](AppState& app, std::string_view) { move_time(app, -1); }},
    UserAction{"time.back10",
               menu::kTime,
               "Ten rows back",
               "",
               {kLeft, kShift},
               [](AppState& app, std::string_view) { move_time(app, -10); }},
    UserAction{"time.first",
               menu::kTime,
               "First row",
               "The row that ends the prompt.",
               {kHome, 0},
               [](AppState& app, std::string_view) { move_time(app, -app.last_row()); }},
    UserAction{"time.last",
               menu::kTime,
               "Newest row",
               "",
               {kEnd, 0},
               [](AppState& app, std::string_view) { move_time(app, app.last_row()); }},
    UserAction{"time.follow",
               menu::kTime,
               "Follow the newest row",
               "",
               {'F', 0},
               [](AppState& app, std::string_view) {
                   app.view.follows_newest = !app.view.follows_newest;
                   if (app.view.follows_newest) move_time(app, app.last_row());
               }},
    UserAction{
        "row",
        "",
        "Show a row",
        "N: the state after row N.",
        {},
        [](AppState& app, std::string_view a) { move_time(app, whole_numbers(a, 1, 1)[0] - app.view.row); }},
    UserAction{
        "rewind",
        menu::kTime,
        "Go back to the shown row",
        "[ROW] [keep]: the run goes on from there, anew; what came after is kept as a branch. Lanes are "
        "set as they were there, with keep as they are now.",
        {'B', kCtrl},
        rewind_run},
    UserAction{
        "fork.here",
        menu::kTime,
        "Fork the lane at the shown row",
        "A copy of the focused lane goes on beside it. At an earlier row the run goes back there first.",
        {'K', kCtrl},
        fork_here},
    UserAction{
        "branch", "", "Go to a branch", "ID: to the end of what going back left behind.", {}, go_to_branch},
    UserAction{"fork",
               "",
               "Fork a lane",
               "[LANE [SPEC]]: a copy that goes on beside it, with other settings where given.",
               {},
               fork_lane},
    UserAction{"evict",
               menu::kTokens,
               "Evict the picked token here",
               "[head|layer|all], or LANE POSITION [L<l>[.H<h>]]: after the newest row.",
               {'X', 0},
               evict_token},
    UserAction{"evict.layer",
               menu::kTokens,
               "Evict the picked token in this layer",
               "",
               {},
               [](AppState& app, std::string_view) { evict_token(app, "layer"); }},
    UserAction{"evict.all",
               menu::kTokens,
               "Evict the picked token everywhere",
               "",
               {'X', kShift},
               [](AppState& app, std::string_view) { evict_token(app, "all"); }},
    UserAction{
        "pin",
        menu::kTokens,
        "Pin the picked token here",
        "[head|layer|all], or LANE POSITION [L<l>[.H<h>]]: no policy evicts it; it counts in the budget.",
        {'P', 0},
        pin_token},
    UserAction{"pin.all",
               menu::kTokens,
               "Pin the picked token everywhere",
               "",
               {'P', kShift},
               [](AppState& app, std::string_view) { pin_token(app, "all"); }},
    UserAction{"unpin",
               menu::kTokens,
               "Unpin the picked token here",
               "[head|layer|all], or LANE POSITION [L<l>[.H<h>]]",
               {'U', 0},
               unpin_token},
    UserAction{"unpin.all",
               menu::kTokens,
               "Unpin the picked token everywhere",
               "",
               {'U', kShift},
               [](AppState& app, std::string_view) { unpin_token(app, "all"); }},
};

}  // namespace

std::span<const UserAction> run_actions() {
    return kTable;
}

}  // namespace keyhole
