#include "app/actions/action_areas.h"

#include "app/actions/history_actions.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/device/prover.h"

#include <algorithm>
#include <array>
#include <filesystem>

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
    // The longest wait is an hour and a half.
    if (!(speed == 0 || (speed >= 2e-4 && speed <= 1e6)))
        fail(ErrorCode::wrong_use, "a speed is 0.0002 to 1000000 steps a second, or 0: no limit");
    set_speed_to(app, speed);
}

template <int kDigit>
void set_speed_digit(AppState& app, std::string_view) {
    set_speed_to(app, speed_of_digit(kDigit));
}

void run_or_stop(AppState& app, std::string_view) {
    if (!app.run.live()) fail(ErrorCode::wrong_use, "{}", need::live_run(app));
    app.run.stoppable() ? app.run.stop(true) : app.play();
}

void decode_steps(AppState& app, std::string_view arguments) {
    constexpr int kMost = 1'000'000;
    const int n = arguments.empty() ? 1 : whole_numbers(arguments, 1, 1)[0];
    if (n < 1 || n > kMost) fail(ErrorCode::wrong_use, "decode 1 to {} steps, not {}", kMost, n);
    app.step(n);
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

/// Gives the next start the model and the prompt of an opened trace, and what the trace knows of it.
void take_setup_of_trace(RunState& run) {
    const RunInfo& of = run.history.run();
    std::error_code ignored;  // a trace may come from another machine
    if (std::filesystem::exists(of.model_path, ignored)) run.setup.model_folder = of.model_path;
    run.setup.prompt = of.prompt;
    run.setup.seed = of.seed;
    run.setup.chat = !of.start.chat.empty();
    run.setup.guide = {of.start.right_answer, of.start.watch, of.start.answer_end.value_or(AnswerEnd{}), {}};
}

void restart(AppState& app, std::string_view) {
    if (!app.run.live()) take_setup_of_trace(app.run);
    app.start();
}

std::string_view need_to_restart(const AppState& app) {
    return app.run.live() ? need::live_run(app) : "";
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

std::string_view needs_download(const AppState& app) {
    return app.jobs.getting() ? "" : "no model is being downloaded";
}

std::string_view needs_cuda(const AppState& app) {
    std::error_code error;
    const bool built = std::filesystem::exists(proof_setup(app.run.backend_options.device).module, error);
    return built ? "" : "this build has no CUDA backend";
}

std::string_view needs_proven_device(const AppState& app) {
    const auto verdict = app.device_proof.verdict();
    const bool ready = verdict != nullptr && verdict->is_taken() && !app.device_proof.running();
    return ready ? "" : "no CUDA device has passed its proof";
}

template <Precision kOther>
bool has_precision(const AppState& app) {
    return app.run.backend_options.precision == kOther;
}

/// The prompt is processed again, on a backend of that precision.
template <Precision kOther>
void set_precision(AppState& app, std::string_view) {
    app.run.backend_options.precision = kOther;
    app.start(true);
}

/// Returns the row of a precision.
template <Precision kOther>
constexpr UserAction precision_row(std::string_view id, std::string_view title, std::string_view help,
                                   int place) {
    return {id,
            title,
            help,
            {},
            set_precision<kOther>,
            {.menu = {MenuGroup::run_device, place}, .lacks = needs_cuda, .is_on = has_precision<kOther>}};
}

template <int kDigit>
bool has_speed_of(const AppState& app) {
    return app.run.speed == speed_of_digit(kDigit);
}

/// Returns the row of a digit key.
template <int kDigit>
constexpr UserAction speed_row(std::string_view id, std::string_view title) {
    return {id,
            title,
            "",
            {'0' + kDigit, 0},
            set_speed_digit<kDigit>,
            {.menu = {MenuGroup::run_speed, kDigit}, .is_on = has_speed_of<kDigit>}};
}

constexpr std::array kRunActions = {
    UserAction{"run.toggle",
               "Run or stop",
               "Decodes until the answer ends, or until you stop it.",
               {' ', 0},
               run_or_stop,
               {.menu = {MenuGroup::run_step, 1}, .lacks = need::live_run}},
    UserAction{"run.play",
               "Run",
               "Decodes until the answer ends.",
               {},
               [](AppState& app, std::string_view) { app.play(); },
               {.elsewhere = "Run or stop does the same"}},
    UserAction{"run.stop",
               "Stop",
               "Stops after this token; unfinished replays are discarded, an unfinished prompt is cancelled.",
               {},
               [](AppState& app, std::string_view) { app.run.stop(true); },
               {.elsewhere = "Run or stop does the same"}},
    UserAction{"step",
               "Decode steps",
               "[N]: decodes N steps (default: 1).",
               {},
               decode_steps,
               {.elsewhere = "One step forward does the same"}},
    UserAction{"run.step",
               "One step forward",
               "Shows the next step; at the newest step it decodes one.",
               {kRight, 0},
               [](AppState& app, std::string_view) { step_or_forward(app, 1); },
               {.menu = {MenuGroup::run_step, 2}, .arguments_are_plain = true}},
    UserAction{"run.step10",
               "Ten steps forward",
               "Shows a later step; at the newest step it decodes ten.",
               {kRight, kShift},
               [](AppState& app, std::string_view) { step_or_forward(app, 10); },
               {.menu = {MenuGroup::run_step, 3}}},
    UserAction{
        "run.restart",
        "Restart from the prompt",
        "Processes the prompt again with the current lane settings. Of an opened trace it starts a run "
        "with its model and prompt.",
        {'R', kCtrl},
        restart,
        {.menu = {MenuGroup::run_step, 4}, .lacks = need_to_restart}},
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
               [](AppState& app, std::string_view) { app.cancel_getting(); },
               {.menu = {MenuGroup::file_cancel, 2}, .lacks = needs_download}},
    UserAction{"device.prove",
               "Prove the CUDA device",
               "Compares, in a process of its own, every kernel with the host and a tiny model with the CPU.",
               {},
               [](AppState& app, std::string_view) { app.prove_device(true); },
               {.menu = {MenuGroup::run_device, 1}, .lacks = needs_cuda}},
    UserAction{"device.use",
               "Start again on the CUDA device",
               "Processes the prompt again on the device that has passed its proof.",
               {},
               [](AppState& app, std::string_view) { app.use_device(); },
               {.menu = {MenuGroup::run_device, 2}, .lacks = needs_proven_device}},
    precision_row<Precision::automatic>("precision.auto", "Prompts in floats where the model is small",
                                        "Starts again; on CUDA a small model's prompts are in floats.", 3),
    precision_row<Precision::floats>("precision.float", "Prompts in floats",
                                     "Starts again; on CUDA the kept tokens are those of the CPU.", 4),
    precision_row<Precision::weights>(
        "precision.weights", "Prompts in the weights' precision",
        "Starts again; on CUDA faster, and other tokens may be kept where scores are close.", 5),
    UserAction{"device.close",
               "Close the strip of the CUDA device",
               "Stops a proof in progress; no verdict is kept then.",
               {},
               [](AppState& app, std::string_view) {
                   app.device_proof.stop();
                   app.device_proof.dismiss();
               },
               {.elsewhere = "a button of the strip"}},
    UserAction{"prompt.chat",
               "Write prompts as turns of a chat",
               "[on|off]: from the next start on, in the form of the model's chat template.",
               {},
               [](AppState& app, std::string_view text) {
                   app.run.setup.chat = on_or_off(text, app.run.setup.chat);
               },
               {.menu = {MenuGroup::run_say, 2},
                .lacks = need::live_run,
                .is_on = [](const AppState& app) { return app.run.setup.chat; }}},
    UserAction{"run.speed",
               "Set the speed",
               "N: steps a second; 0: no limit.",
               {},
               set_speed,
               {.arguments_are_plain = true}},
    speed_row<0>("run.speed0", "Speed: no limit"),
    speed_row<1>("run.speed1", "Speed: 1 step a second"),
    speed_row<2>("run.speed2", "Speed: 2 steps a second"),
    speed_row<3>("run.speed3", "Speed: 3 steps a second"),
    speed_row<4>("run.speed4", "Speed: 5 steps a second"),
    speed_row<5>("run.speed5", "Speed: 8 steps a second"),
    speed_row<6>("run.speed6", "Speed: 12 steps a second"),
    speed_row<7>("run.speed7", "Speed: 20 steps a second"),
    speed_row<8>("run.speed8", "Speed: 35 steps a second"),
    speed_row<9>("run.speed9", "Speed: 60 steps a second"),
    UserAction{"time.back",
               "One step back",
               "",
               {kLeft, 0},
               [](AppState& app, std::string_view) { move_time(app, -1); },
               {.menu = {MenuGroup::run_time, 1}}},
    UserAction{"time.back10",
               "Ten steps back",
               "",
               {kLeft, kShift},
               [](AppState& app, std::string_view) { move_time(app, -10); },
               {.menu = {MenuGroup::run_time, 2}}},
    UserAction{"time.first",
               "First step",
               "The last token of the prompt.",
               {kHome, 0},
               [](AppState& app, std::string_view) { move_time(app, -app.run.last_row()); },
               {.menu = {MenuGroup::run_time, 3}}},
    UserAction{"time.last",
               "Newest step",
               "",
               {kEnd, 0},
               [](AppState& app, std::string_view) { move_time(app, app.run.last_row()); },
               {.menu = {MenuGroup::run_time, 4}}},
    UserAction{"time.follow",
               "Follow the newest step",
               "",
               {'F', 0},
               [](AppState& app, std::string_view) {
                   app.view.follows_newest = !app.view.follows_newest;
                   if (app.view.follows_newest) move_time(app, app.run.last_row());
               },
               {.menu = {MenuGroup::run_time, 5},
                .is_on = [](const AppState& app) { return app.view.follows_newest; }}},
    UserAction{
        "time.show",
        "Show a step",
        "N: the state after step N.",
        {},
        [](AppState& app, std::string_view a) { move_time(app, whole_numbers(a, 1, 1)[0] - app.view.row); },
        {.arguments_are_plain = true, .is_drag = true}},
    UserAction{"rewind",
               "Rewind to the shown step",
               "[STEP] [keep]: goes back to this step and continues from here; later steps are kept as a "
               "branch. The lanes get the settings of that step, or with keep the current ones.",
               {'B', kCtrl},
               rewind_run,
               {.menu = {MenuGroup::run_rewind, 1}, .lacks = need::live_run, .arguments_are_plain = true}},
    UserAction{"fork.here",
               "Fork the lane at the shown step",
               "A copy of the focused lane continues beside it. At an earlier step the run goes back there "
               "first.",
               {'K', kCtrl},
               fork_here,
               {.menu = {MenuGroup::run_rewind, 2}, .lacks = need::live_run, .arguments_are_plain = true}},
    UserAction{"branch",
               "Go to a branch",
               "ID: goes to the end of a branch, the steps that an earlier rewind cut off.",
               {},
               go_to_branch,
               {.arguments_are_plain = true}},
    UserAction{"fork",
               "Fork a lane",
               "[LANE [SPEC]]: a copy continues beside the lane, with other settings if given.",
               {},
               fork_lane,
               {.elsewhere = "Fork the lane at the shown step does the same", .arguments_are_plain = true}},
    UserAction{
        "evict",
        "Evict the picked token here",
        "[head|layer|all], or LANE POSITION [L<l>[.H<h>]]: after the newest step.",
        {'X', 0},
        evict_token,
        {.menu = {MenuGroup::token_evict, 1}, .lacks = need::pick_of_live_run, .arguments_are_plain = true}},
    UserAction{
        "evict.layer",
        "Evict the picked token in this layer",
        "",
        {},
        [](AppState& app, std::string_view) { evict_token(app, "layer"); },
        {.menu = {MenuGroup::token_evict, 2}, .lacks = need::pick_of_live_run, .arguments_are_plain = true}},
    UserAction{
        "evict.all",
        "Evict the picked token everywhere",
        "",
        {'X', kShift},
        [](AppState& app, std::string_view) { evict_token(app, "all"); },
        {.menu = {MenuGroup::token_evict, 3}, .lacks = need::pick_of_live_run, .arguments_are_plain = true}},
    UserAction{
        "pin",
        "Pin the picked token here",
        "[head|layer|all], or LANE POSITION [L<l>[.H<h>]]: no policy evicts it; it counts in the budget.",
        {'P', 0},
        pin_token,
        {.menu = {MenuGroup::token_pin, 1}, .lacks = need::pick_of_live_run, .arguments_are_plain = true}},
    UserAction{
        "pin.all",
        "Pin the picked token everywhere",
        "",
        {'P', kShift},
        [](AppState& app, std::string_view) { pin_token(app, "all"); },
        {.menu = {MenuGroup::token_pin, 2}, .lacks = need::pick_of_live_run, .arguments_are_plain = true}},
    UserAction{
        "unpin",
        "Unpin the picked token here",
        "[head|layer|all], or LANE POSITION [L<l>[.H<h>]]",
        {'U', 0},
        unpin_token,
        {.menu = {MenuGroup::token_pin, 3}, .lacks = need::pick_of_live_run, .arguments_are_plain = true}},
    UserAction{
        "unpin.all",
        "Unpin the picked token everywhere",
        "",
        {'U', kShift},
        [](AppState& app, std::string_view) { unpin_token(app, "all"); },
        {.menu = {MenuGroup::token_pin, 4}, .lacks = need::pick_of_live_run, .arguments_are_plain = true}},
};

}  // namespace

double speed_of_digit(int digit) {
    return kSpeeds[to_index(digit)];
}

std::span<const UserAction> run_actions() {
    return kRunActions;
}

}  // namespace keyhole
