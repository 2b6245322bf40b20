#include "app/actions/action_areas.h"

#include "app/actions/history_actions.h"
#include "engine/base/error.h"
#include "engine/base/index.h"

#include <algorithm>
#include <array>

namespace keyhole {

namespace {

using namespace key;

constexpr std::array<double, 10> kSpeeds = {0, 1, 2, 3, 5, 8, 12, 20, 35, 60};  // steps per second, by digit

void step_or_forward(AppState& app, int n_rows) {
    if (app.view.row < app.run.last_row())
        move_time(app, n_rows);
    else
        app.step(n_rows);
}

void set_speed_to(AppState& app, double steps_per_second) {
    app.run.set_speed(steps_per_second);
    app.notify(steps_per_second == 0 ? "speed: no limit"
                                     : fmt::format("speed: {} steps a second", steps_per_second));
}

void set_speed(AppState& app, std::string_view arguments) {
    const double speed = real_numbers(arguments, 1, 1)[0];
    if (!(speed >= 0 && speed <= 1e6)) fail(ErrorCode::wrong_use, "a speed is 0 to 1000000 steps a second");
    set_speed_to(app, speed);
}

template <int kDigit>
void set_speed_digit(AppState& app, std::string_view) {
    set_speed_to(app, speed_of_digit(kDigit));
}

void set_model(AppState& app, std::string_view name) {
    app.open_model(name);
}

void get_model(AppState& app, std::string_view name) {
    app.get_model(name);
}

void set_prompt(AppState& app, std::string_view text) {
    if (text.empty()) fail(ErrorCode::wrong_use, "the prompt is empty; give a text");
    app.run.setup.prompt = text;
    app.run.setup.guide = {};
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

constexpr std::array kRunActions = {
    UserAction{
        "run.toggle",
        "Run or stop",
        "Decodes until the answer ends, or until you stop it.",
        {' ', 0},
        [](AppState& app, std::string_view) { app.run.stoppable() ? app.run.stop(true) : app.play(); }},
    UserAction{"run.play",
               "Run",
               "Decodes until the answer ends.",
               {},
               [](AppState& app, std::string_view) { app.play(); }},
    UserAction{"run.stop",
               "Stop",
               "Stops after this token; unfinished replays are discarded, an unfinished prompt is cancelled.",
               {},
               [](AppState& app, std::string_view) { app.run.stop(true); }},
    UserAction{
        "step",
        "Decode steps",
        "[N]: decodes N steps (default: 1).",
        {},
        [](AppState& app, std::string_view a) { app.step(a.empty() ? 1 : whole_numbers(a, 1, 1)[0]); }},
    UserAction{"run.step",
               "One step forward",
               "Shows the next step; at the newest step it decodes one.",
               {kRight, 0},
               [](AppState& app, std::string_view) { step_or_forward(app, 1); }},
    UserAction{"run.step10",
               "Ten steps forward",
               "Shows a later step; at the newest step it decodes ten.",
               {kRight, kShift},
               [](AppState& app, std::string_view) { step_or_forward(app, 10); }},
    UserAction{"run.restart",
               "Restart from the prompt",
               "Processes the prompt again with the current lane settings.",
               {'R', kCtrl},
               [](AppState& app, std::string_view) { app.start(); }},
    UserAction{"prompt", "Set the prompt", "TEXT: starts a run with this prompt.", {}, set_prompt},
    UserAction{
        "model",
        "Set the model",
        "MODEL: starts a run with a Hugging Face folder, a GGUF file, ORG/NAME of the hub, or a name of "
        "the catalogue.",
        {},
        set_model},
    UserAction{"model.get",
               "Get a model",
               "NAME: downloads a model of the catalogue, and starts a run with it when it is there.",
               {},
               get_model},
    UserAction{"model.cancel",
               "Cancel the download of a model",
               "Stops the download; nothing of it is kept.",
               {},
               [](AppState& app, std::string_view) { app.cancel_getting(); }},
    UserAction{"device.prove",
               "Prove the CUDA device",
               "Compares, in a process of its own, every kernel with the host and a tiny model with the CPU.",
               {},
               [](AppState& app, std::string_view) { app.prove_device(true); }},
    UserAction{"device.use",
               "Start again on the CUDA device",
               "Processes the prompt again on the device that has passed its proof.",
               {},
               [](AppState& app, std::string_view) { app.use_device(); }},
    UserAction{"device.close",
               "Close the strip of the CUDA device",
               "Stops a proof in progress; no verdict is kept then.",
               {},
               [](AppState& app, std::string_view) {
                   app.device_proof.stop();
                   app.device_proof.dismiss();
               }},
    UserAction{"prompt.chat",
               "Write prompts as turns of a chat",
               "[on|off]: from the next start on, in the form of the model's chat template.",
               {},
               [](AppState& app, std::string_view text) {
                   app.run.setup.chat = on_or_off(text, app.run.setup.chat);
               }},
    UserAction{"run.speed", "Set the speed", "N: steps a second; 0: no limit.", {}, set_speed},
    UserAction{"run.speed0", "Speed: no limit", "", {'0', 0}, set_speed_digit<0>},
    UserAction{"run.speed1", "Speed: 1 step a second", "", {'1', 0}, set_speed_digit<1>},
    UserAction{"run.speed2", "Speed: 2 steps a second", "", {'2', 0}, set_speed_digit<2>},
    UserAction{"run.speed3", "Speed: 3 steps a second", "", {'3', 0}, set_speed_digit<3>},
    UserAction{"run.speed4", "Speed: 5 steps a second", "", {'4', 0}, set_speed_digit<4>},
    UserAction{"run.speed5", "Speed: 8 steps a second", "", {'5', 0}, set_speed_digit<5>},
    UserAction{"run.speed6", "Speed: 12 steps a second", "", {'6', 0}, set_speed_digit<6>},
    UserAction{"run.speed7", "Speed: 20 steps a second", "", {'7', 0}, set_speed_digit<7>},
    UserAction{"run.speed8", "Speed: 35 steps a second", "", {'8', 0}, set_speed_digit<8>},
    UserAction{"run.speed9", "Speed: 60 steps a second", "", {'9', 0}, set_speed_digit<9>},
    UserAction{"time.back",
               "One step back",
               "",
               {kLeft, 0},
               [](AppState& app, std::string_view) { move_time(app, -1); }},
    UserAction{"time.back10",
               "Ten steps back",
               "",
               {kLeft, kShift},
               [](AppState& app, std::string_view) { move_time(app, -10); }},
    UserAction{"time.first",
               "First step",
               "The last token of the prompt.",
               {kHome, 0},
               [](AppState& app, std::string_view) { move_time(app, -app.run.last_row()); }},
    UserAction{"time.last",
               "Newest step",
               "",
               {kEnd, 0},
               [](AppState& app, std::string_view) { move_time(app, app.run.last_row()); }},
    UserAction{"time.follow",
               "Follow the newest step",
               "",
               {'F', 0},
               [](AppState& app, std::string_view) {
                   app.view.follows_newest = !app.view.follows_newest;
                   if (app.view.follows_newest) move_time(app, app.run.last_row());
               }},
    UserAction{
        "time.show",
        "Show a step",
        "N: the state after step N.",
        {},
        [](AppState& app, std::string_view a) { move_time(app, whole_numbers(a, 1, 1)[0] - app.view.row); }},
    UserAction{
        "rewind",
        "Rewind to the shown step",
        "[STEP] [keep]: goes back to this step and continues from here; later steps are kept as a branch. "
        "The lanes get the settings of that step, or with keep the current ones.",
        {'B', kCtrl},
        rewind_run},
    UserAction{
        "fork.here",
        "Fork the lane at the shown step",
        "A copy of the focused lane continues beside it. At an earlier step the run goes back there first.",
        {'K', kCtrl},
        fork_here},
    UserAction{"branch",
               "Go to a branch",
               "ID: goes to the end of a branch, the steps that an earlier rewind cut off.",
               {},
               go_to_branch},
    UserAction{"fork",
               "Fork a lane",
               "[LANE [SPEC]]: a copy continues beside the lane, with other settings if given.",
               {},
               fork_lane},
    UserAction{"evict",
               "Evict the picked token here",
               "[head|layer|all], or LANE POSITION [L<l>[.H<h>]]: after the newest step.",
               {'X', 0},
               evict_token},
    UserAction{"evict.layer",
               "Evict the picked token in this layer",
               "",
               {},
               [](AppState& app, std::string_view) { evict_token(app, "layer"); }},
    UserAction{"evict.all",
               "Evict the picked token everywhere",
               "",
               {'X', kShift},
               [](AppState& app, std::string_view) { evict_token(app, "all"); }},
    UserAction{
        "pin",
        "Pin the picked token here",
        "[head|layer|all], or LANE POSITION [L<l>[.H<h>]]: no policy evicts it; it counts in the budget.",
        {'P', 0},
        pin_token},
    UserAction{"pin.all",
               "Pin the picked token everywhere",
               "",
               {'P', kShift},
               [](AppState& app, std::string_view) { pin_token(app, "all"); }},
    UserAction{"unpin",
               "Unpin the picked token here",
               "[head|layer|all], or LANE POSITION [L<l>[.H<h>]]",
               {'U', 0},
               unpin_token},
    UserAction{"unpin.all",
               "Unpin the picked token everywhere",
               "",
               {'U', kShift},
               [](AppState& app, std::string_view) { unpin_token(app, "all"); }},
};

}  // namespace

double speed_of_digit(int digit) {
    return kSpeeds[to_index(digit)];
}

std::span<const UserAction> run_actions() {
    return kRunActions;
}

}  // namespace keyhole
