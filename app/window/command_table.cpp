#include "app/window/command_table.h"

#include "app/window/history_commands.h"
#include "app/window/override_grid.h"
#include "engine/base/error.h"
#include "engine/policy/spec_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <fstream>
#include <sstream>

namespace keyhole {

namespace {

using namespace key;

constexpr std::array<double, 10> kSpeeds = {0, 1, 2, 3, 5, 8, 12, 20, 35, 60};  // rows per second, by digit

template <class Number = int>
std::vector<Number> numbers(std::string_view text, std::size_t at_least, std::size_t at_most) {
    std::istringstream stream{std::string(text)};
    std::vector<Number> values;
    for (Number value{}; stream >> value;) values.push_back(value);
    if (!stream.eof() || values.size() < at_least || values.size() > at_most)
        fail(ErrorCode::wrong_use, "'{}': {} to {} numbers are needed", text, at_least, at_most);
    return values;
}

const ModelConfig& config(const AppState& app) {
    if (!app.has_run()) fail(ErrorCode::wrong_use, "no run yet");
    return app.history.run().config;
}

void move_time(AppState& app, int by) {
    app.view.move_row(by, app.first_row(), app.last_row());
}

void step_or_forward(AppState& app, int n_rows) {
    if (app.view.row < app.last_row())
        move_time(app, n_rows);
    else
        app.step(n_rows);
}

void set_mode(AppState& app, HeatMode mode) {
    app.view.mode = mode;
}

template <int kDigit>
void set_speed_digit(AppState& app, std::string_view) {
    app.set_speed(kSpeeds[kDigit]);
    app.say(kDigit == 0 ? "speed: as fast as it goes"
                        : fmt::format("speed: {} rows a second", kSpeeds[kDigit]));
}

template <Dialog kDialog>
void open_dialog(AppState& app, std::string_view) {
    app.dialog = app.dialog == kDialog ? Dialog::none : kDialog;
    app.palette_text.clear();
}

bool on_or_off(std::string_view text, bool now) {
    if (text.empty()) return !now;
    if (text == "on") return true;
    if (text == "off") return false;
    fail(ErrorCode::wrong_use, "'{}': on or off", text);
}

void engine_command(AppState& app, std::string_view verb, std::string_view arguments) {
    app.desk.run(parse_command(std::string(verb) + " " + std::string(arguments)));
}

void zoom(AppState& app, std::string_view arguments) {
    // The canvas' size is not known here: the heatmap panel centres on the pick.
    const std::vector<double> v = numbers<double>(arguments, 1, 3);
    HeatView& heat = app.view.heat;
    heat.cell_width = heat.cell_height = std::clamp(v[0], HeatView::kMinCell, HeatView::kMaxCell);
    heat.fitted = false;
    app.view.center_request = v.size() == 3 ? Pick{static_cast<int>(v[1]), static_cast<int>(v[2])}
                                            : Pick{app.view.row, app.view.row / 2};
}

void set_scale(AppState& app, float scale) {
    app.view.interface_scale = std::clamp(scale, 0.5f, 3.0f);
    app.scale_changed = true;
}

void find_token(AppState& app, std::string_view words) {
    if (words.empty()) {
        open_dialog<Dialog::find>(app, {});
        return;
    }
    const int lane = app.shown_lane();
    (void)config(app);
    const std::vector<int>& tokens = app.history.lanes()[static_cast<std::size_t>(lane)].tokens;
    const int n = static_cast<int>(tokens.size());
    const int from = app.view.pick ? app.view.pick->position + 1 : 0;
    for (int i = 0; i < n; ++i) {
        const int p = (from + i) % n;
        if (app.history.run().token_bytes[static_cast<std::size_t>(tokens[static_cast<std::size_t>(p)])].find(
                words) == std::string::npos)
            continue;
        app.view.pick_cell({std::max(app.view.row, p), p}, false);
        app.say(fmt::format("'{}' at position {}", words, p));
        return;
    }
    app.say(fmt::format("no token has '{}'", words), true);
}

void go_to(AppState& app, std::string_view arguments) {
    if (arguments.empty()) {
        open_dialog<Dialog::go_to>(app, {});
        return;
    }
    const std::vector<int> v = numbers(arguments, 2, 3);
    const ModelConfig& model = config(app);
    if (v[0] < 0 || v[0] >= model.n_layers || v[1] < 0 || v[1] >= model.n_heads)
        fail(ErrorCode::wrong_use, "layers are 0 to {}, heads 0 to {}", model.n_layers - 1,
             model.n_heads - 1);
    app.view.layer = v[0];
    app.view.head = v[1];
    if (v.size() == 3) move_time(app, v[2] - app.view.row);
}

void pick(AppState& app, std::string_view arguments) {
    const std::vector<int> v = numbers(arguments, 2, 2);
    (void)config(app);
    if (v[0] < 0 || v[0] > app.last_row() || v[1] < 0 || v[1] > v[0])
        fail(ErrorCode::wrong_use, "rows are 0 to {}, positions up to the row", app.last_row());
    app.view.pick_cell({v[0], v[1]}, !app.view.curve_positions.empty());
}

void set_prompt(AppState& app, std::string_view text) {
    if (text.empty()) fail(ErrorCode::wrong_use, "a prompt needs text");
    app.setup.prompt = text;
    app.start();
}

void duplicate_lane(AppState& app, std::string_view) {
    if (app.desk.n_lanes() > 0) app.desk.add(app.desk.lanes()[static_cast<std::size_t>(app.view.lane)]);
}

void remove_lane(AppState& app, std::string_view arguments) {
    if (arguments.empty()) {
        if (app.view.lane == 0) fail(ErrorCode::wrong_use, "lane 0 is the reference and stays");
        app.desk.remove(app.view.lane);
    } else {
        engine_command(app, "remove", arguments);
    }
}

void set_options(AppState& app, std::string_view items) {
    if (app.desk.n_lanes() == 0) fail(ErrorCode::wrong_use, "no lane yet");
    if (items.empty()) fail(ErrorCode::wrong_use, "KEY=VALUE is needed, such as dialect=released");
    const LaneSpec& now = app.desk.lanes()[static_cast<std::size_t>(app.view.lane)];
    app.desk.set(app.view.lane, changed_lane_spec(now, items));
}

void set_shadows(AppState& app, std::string_view text) {
    const bool any_off = std::any_of(app.desk.lanes().begin(), app.desk.lanes().end(),
                                     [](const LaneSpec& lane) { return !lane.policy.shadow; });
    const bool on = on_or_off(text, !any_off);
    for (int i = 0; i < app.desk.n_lanes(); ++i) {
        LaneSpec spec = app.desk.lanes()[static_cast<std::size_t>(i)];
        spec.policy.shadow = on;
        app.desk.set(i, spec);
    }
    app.say(on ? "shadows on: measures begin with the next row" : "shadows off");
}

/// Index of a measure with a curve, -1 for the panel's own; the one after `now` without a name. Of heads: only those of a shadow.
int next_measure(std::string_view name, int now, bool of_heads) {
    const std::span<const CurveKind> kinds = curve_kinds();
    const auto fits = [&](int i) {
        return i < 0 || !of_heads || kinds[static_cast<std::size_t>(i)].needs_shadow;
    };
    if (name.empty()) {
        do now = now + 1 < static_cast<int>(kinds.size()) ? now + 1 : -1;
        while (!fits(now));
        return now;
    }
    const std::string_view own = of_heads ? "attention" : "scores";
    if (name == own) return -1;
    const int found = curve_index(name);
    if (found >= 0 && fits(found)) return found;
    std::vector<std::string_view> names = {own};
    for (const CurveKind& kind : kinds)
        if (fits(curve_index(kind.measure))) names.push_back(kind.measure);
    fail(ErrorCode::wrong_use, "'{}' has no curve; one of {}", name, fmt::join(names, ", "));
}

void drop_overrides(AppState& app, std::string_view field) {
    if (app.desk.n_lanes() == 0) fail(ErrorCode::wrong_use, "no lane yet");
    LaneSpec spec = app.desk.lanes()[static_cast<std::size_t>(app.view.lane)];
    std::erase_if(spec.policy.overrides,
                  [&](const Override& o) { return field.empty() || override_field_name(o.field) == field; });
    app.desk.set(app.view.lane, spec);
}

void focus_lane(AppState& app, std::string_view arguments) {
    const int lane = numbers(arguments, 1, 1)[0];
    if (lane < 0 || lane >= app.desk.n_lanes())
        fail(ErrorCode::wrong_use, "lanes are 0 to {}", app.desk.n_lanes() - 1);
    app.view.lane = lane;
}

void move_lane(AppState& app, int by) {
    app.view.lane = std::clamp(app.view.lane + by, 0, std::max(app.desk.n_lanes() - 1, 0));
}

void start_export(AppState& app) {
    if (!app.live() || !app.has_run())
        fail(ErrorCode::wrong_use, "an export re-runs a live run; for an opened trace use keyhole replay");
    app.export_job.start(app.engine().model(), app.status.run, app.last_row(), app.backend_options, app.wake);
}

void export_run(AppState& app, std::string_view arguments) {
    if (arguments.empty()) {
        open_dialog<Dialog::export_run>(app, {});
        return;
    }
    const std::size_t blank = arguments.find(' ');
    app.export_job.wish.folder = std::filesystem::path(arguments.substr(0, blank));
    if (blank != std::string_view::npos) app.export_job.wish.list = arguments.substr(blank + 1);
    start_export(app);
}

void copy_lane(AppState& app, std::string_view) {
    if (app.desk.n_lanes() == 0) return;
    app.clipboard_out = format_lane_spec(app.desk.lanes()[static_cast<std::size_t>(app.view.lane)]);
    app.say("copied " + app.clipboard_out);
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

constexpr std::string_view kFile = "File", kRun = "Run", kView = "View", kTime = "Time", kLanes = "Lanes",
                           kTokens = "Token", kHelp = "Help";

const std::array kTable =
    {
        // --- run ---
        UserCommand{"run.toggle",
                    kRun,
                    "Run or stop",
                    "Decodes until stopped.",
                    {' ', 0},
                    [](AppState& app, std::string_view) { app.running() ? app.stop() : app.play(); }},
        UserCommand{"run.play",
                    "",
                    "Run",
                    "Decodes until stopped.",
                    {},
                    [](AppState& app, std::string_view) { app.play(); }},
        UserCommand{"run.stop",
                    "",
                    "Stop",
                    "Stops after the present row.",
                    {},
                    [](AppState& app, std::string_view) { app.stop(); }},
        UserCommand{"step",
                    "",
                    "Decode rows",
                    "[N]: decodes N rows, 1 without.",
                    {},
                    [](AppState& app, std::string_view a) { app.step(a.empty() ? 1 : numbers(a, 1, 1)[0]); }},
        UserCommand{"run.step",
                    kRun,
                    "One row on",
                    "Forward in time; at the newest row it decodes one.",
                    {kRight, 0},
                    [](AppState& app, std::string_view) { step_or_forward(app, 1); }},
        UserCommand{"run.step10",
                    kRun,
                    "Ten rows on",
                    "Forward in time; at the newest row it decodes ten.",
                    {kRight, kShift},
                    [](AppState& app, std::string_view) { step_or_forward(app, 10); }},
        UserCommand{"run.restart",
                    kRun,
                    "Restart from the prompt",
                    "Processes the prompt again with the lanes as they are set.",
                    {'R', kCtrl},
                    [](AppState& app, std::string_view) {
                        if (app.desk.n_lanes() > 0) app.setup.lanes = app.desk.lanes();
                        app.start();
                    }},
        UserCommand{"prompt", "", "Set the prompt", "TEXT: starts a run with this prompt.", {}, set_prompt},
        UserCommand{"run.speed0", "", "Speed: as fast as it goes", "", {'0', 0}, set_speed_digit<0>},
        UserCommand{"run.speed1", "", "Speed: 1 row a second", "", {'1', 0}, set_speed_digit<1>},
        UserCommand{"run.speed2", "", "Speed: 2 rows a second", "", {'2', 0}, set_speed_digit<2>},
        UserCommand{"run.speed3", "", "Speed: 3 rows a second", "", {'3', 0}, set_speed_digit<3>},
        UserCommand{"run.speed4", "", "Speed: 5 rows a second", "", {'4', 0}, set_speed_digit<4>},
        UserCommand{"run.speed5", "", "Speed: 8 rows a second", "", {'5', 0}, set_speed_digit<5>},
        UserCommand{"run.speed6", "", "Speed: 12 rows a second", "", {'6', 0}, set_speed_digit<6>},
        UserCommand{"run.speed7", "", "Speed: 20 rows a second", "", {'7', 0}, set_speed_digit<7>},
        UserCommand{"run.speed8", "", "Speed: 35 rows a second", "", {'8', 0}, set_speed_digit<8>},
        UserCommand{"run.speed9", "", "Speed: 60 rows a second", "", {'9', 0}, set_speed_digit<9>},
        // --- time ---
        UserCommand{"time.back",
                    kTime,
                    "One row back",
                    "",
                    {kLeft, 0},
                    [](AppState& app, std::string_view) { move_time(app, -1); }},
        UserCommand{"time.back10",
                    kTime,
                    "Ten rows back",
                    "",
                    {kLeft, kShift},
                    [](AppState& app, std::string_view) { move_time(app, -10); }},
        UserCommand{"time.first",
                    kTime,
                    "First row",
                    "The row that ends the prompt.",
                    {kHome, 0},
                    [](AppState& app, std::string_view) { move_time(app, -app.last_row()); }},
        UserCommand{"time.last",
                    kTime,
                    "Newest row",
                    "",
                    {kEnd, 0},
                    [](AppState& app, std::string_view) { move_time(app, app.last_row()); }},
        UserCommand{"time.follow",
                    kTime,
                    "Follow the newest row",
                    "",
                    {'F', 0},
                    [](AppState& app, std::string_view) {
                        app.view.follows_newest = !app.view.follows_newest;
                        if (app.view.follows_newest) move_time(app, app.last_row());
                    }},
        UserCommand{
            "row",
            "",
            "Show a row",
            "N: the state after row N.",
            {},
            [](AppState& app, std::string_view a) { move_time(app, numbers(a, 1, 1)[0] - app.view.row); }},
        UserCommand{"rewind",
                    kTime,
                    "Go back to the shown row",
                    "[ROW]: the run goes on from there, anew; what came after is kept as a branch.",
                    {'B', kCtrl},
                    rewind_run},
        UserCommand{
            "fork.here",
            kTime,
            "Fork the lane at the shown row",
            "A copy of the focused lane goes on beside it. At an earlier row the run goes back there first.",
            {'K', kCtrl},
            fork_here},
        UserCommand{"branch",
                    "",
                    "Go to a branch",
                    "ID: to the end of what going back left behind.",
                    {},
                    go_to_branch},
        UserCommand{"fork",
                    "",
                    "Fork a lane",
                    "[LANE [SPEC]]: a copy that goes on beside it, with other settings where given.",
                    {},
                    fork_lane},
        // --- tokens ---
        UserCommand{"evict",
                    kTokens,
                    "Evict the picked token here",
                    "[head|layer|all], or LANE POSITION [L<l>[.H<h>]]: after the newest row.",
                    {'X', 0},
                    evict_token},
        UserCommand{"evict.layer",
                    kTokens,
                    "Evict the picked token in this layer",
                    "",
                    {},
                    [](AppState& app, std::string_view) { evict_token(app, "layer"); }},
        UserCommand{"evict.all",
                    kTokens,
                    "Evict the picked token everywhere",
                    "",
                    {'X', kShift},
                    [](AppState& app, std::string_view) { evict_token(app, "all"); }},
        UserCommand{
            "pin",
            kTokens,
            "Pin the picked token here",
            "[head|layer|all], or LANE POSITION [L<l>[.H<h>]]: no policy evicts it; it counts in the budget.",
            {'P', 0},
            pin_token},
        UserCommand{"pin.all",
                    kTokens,
                    "Pin the picked token everywhere",
                    "",
                    {'P', kShift},
                    [](AppState& app, std::string_view) { pin_token(app, "all"); }},
        UserCommand{"unpin",
                    kTokens,
                    "Unpin the picked token here",
                    "[head|layer|all], or LANE POSITION [L<l>[.H<h>]]",
                    {'U', 0},
                    unpin_token},
        UserCommand{"unpin.all",
                    kTokens,
                    "Unpin the picked token everywhere",
                    "",
                    {'U', kShift},
                    [](AppState& app, std::string_view) { unpin_token(app, "all"); }},
        // --- view ---
        UserCommand{"mode.attention",
                    kView,
                    "Attention",
                    "The focused head's attention probabilities.",
                    {'A', 0},
                    [](AppState& app, std::string_view) { set_mode(app, HeatMode::attention); }},
        UserCommand{"mode.mask",
                    kView,
                    "Mask",
                    "What the cache holds: kept, evicted by the row, gone.",
                    {'K', 0},
                    [](AppState& app, std::string_view) { set_mode(app, HeatMode::mask); }},
        UserCommand{"mode.score",
                    kView,
                    "Score",
                    "The scores by which tokens are kept, after each row.",
                    {'C', 0},
                    [](AppState& app, std::string_view) { set_mode(app, HeatMode::score); }},
        UserCommand{"mask.overlay",
                    kView,
                    "Hatch over evicted cells",
                    "",
                    {'M', 0},
                    [](AppState& app, std::string_view a) {
                        app.view.mask_overlay = on_or_off(a, app.view.mask_overlay);
                    }},
        UserCommand{"range.log",
                    kView,
                    "Logarithmic colours",
                    "Attention sinks swamp a linear scale.",
                    {'L', 0},
                    [](AppState& app, std::string_view a) {
                        app.view.range().logarithmic = on_or_off(a, app.view.range().logarithmic);
                    }},
        UserCommand{"range.auto",
                    kView,
                    "Automatic range",
                    "The range follows the largest value.",
                    {'R', 0},
                    [](AppState& app, std::string_view a) {
                        app.view.range().automatic = on_or_off(a, app.view.range().automatic);
                    }},
        UserCommand{"range.set",
                    "",
                    "Set the range",
                    "LOW HIGH: fixes the range of the colours.",
                    {},
                    [](AppState& app, std::string_view a) {
                        const std::vector<float> v = numbers<float>(a, 2, 2);
                        if (!(v[0] < v[1]) || v[0] < 0) fail(ErrorCode::wrong_use, "0 <= low < high");
                        app.view.range().automatic = false;
                        app.view.range().low = v[0];
                        app.view.range().high = v[1];
                    }},
        UserCommand{"range.sinks",
                    kView,
                    "First tokens in the range",
                    "Whether the first four tokens take part in the automatic range.",
                    {'S', 0},
                    [](AppState& app, std::string_view a) {
                        app.view.range().sinks_count = on_or_off(a, app.view.range().sinks_count);
                    }},
        UserCommand{
            "view.fit",
            kView,
            "Whole matrix",
            "",
            {'0', kCtrl},
            [](AppState& app, std::string_view) { app.view.heat.fitted = true; }},
        UserCommand{"view.zoom",
                    "",
                    "Zoom",
                    "CELL [ROW POSITION]: pixels of a cell, and the cell in the middle.",
                    {},
                    zoom},
        UserCommand{"layer.previous",
                    kView,
                    "Previous layer",
                    "",
                    {'[', 0},
                    [](AppState& app, std::string_view) { app.view.move_layer(-1, config(app).n_layers); }},
        UserCommand{"layer.next",
                    kView,
                    "Next layer",
                    "",
                    {']', 0},
                    [](AppState& app, std::string_view) { app.view.move_layer(1, config(app).n_layers); }},
        UserCommand{"head.previous",
                    kView,
                    "Previous head",
                    "",
                    {',', 0},
                    [](AppState& app, std::string_view) { app.view.move_head(-1, config(app).n_heads); }},
        UserCommand{"head.next",
                    kView,
                    "Next head",
                    "",
                    {'.', 0},
                    [](AppState& app, std::string_view) { app.view.move_head(1, config(app).n_heads); }},
        UserCommand{"goto", kView, "Go to layer, head, row…", "LAYER HEAD [ROW]", {'G', kCtrl}, go_to},
        UserCommand{"find",
                    kView,
                    "Find a token…",
                    "TEXT: picks the next token with it.",
                    {'F', kCtrl},
                    find_token},
        UserCommand{"pick", "", "Pick a cell", "ROW POSITION", {}, pick},
        UserCommand{"pick.up",
                    "",
                    "Pick: one row up",
                    "",
                    {kUp, kAlt},
                    [](AppState& app, std::string_view) { app.view.move_pick(-1, 0, app.last_row()); }},
        UserCommand{"pick.down",
                    "",
                    "Pick: one row down",
                    "",
                    {kDown, kAlt},
                    [](AppState& app, std::string_view) { app.view.move_pick(1, 0, app.last_row()); }},
        UserCommand{"pick.left",
                    "",
                    "Pick: one position left",
                    "",
                    {kLeft, kAlt},
                    [](AppState& app, std::string_view) { app.view.move_pick(0, -1, app.last_row()); }},
        UserCommand{"pick.right",
                    "",
                    "Pick: one position right",
                    "",
                    {kRight, kAlt},
                    [](AppState& app, std::string_view) { app.view.move_pick(0, 1, app.last_row()); }},
        UserCommand{"pick.clear",
                    kView,
                    "Drop the picks",
                    "",
                    {kEscape, 0},
                    [](AppState& app, std::string_view) {
                        app.view.pick.reset();
                        app.view.curve_positions.clear();
                    }},
        UserCommand{"curves",
                    kView,
                    "Curves of the next measure",
                    "[scores|MEASURE]: kl, retained_mass, cosine_ideal…; the next one without.",
                    {'V', 0},
                    [](AppState& app, std::string_view a) {
                        app.view.measure_curve = next_measure(a, app.view.measure_curve, false);
                    }},
        UserCommand{
            "atlas.color",
            kView,
            "Colour the atlas by the next measure",
            "[attention|MEASURE]: of every head at the shown row; the next one without. Needs a shadow.",
            {'V', kShift},
            [](AppState& app, std::string_view a) {
                app.view.atlas_measure = next_measure(a, app.view.atlas_measure, true);
            }},
        UserCommand{"strip.score",
                    kView,
                    "Token strip by score",
                    "Colours the text by score in the focused head instead of kept share.",
                    {'T', 0},
                    [](AppState& app, std::string_view a) {
                        app.view.strip_by_score = on_or_off(a, app.view.strip_by_score);
                    }},
        UserCommand{"ui.larger",
                    kView,
                    "Larger interface",
                    "",
                    {'=', kCtrl},
                    [](AppState& app, std::string_view) { set_scale(app, app.view.interface_scale + 0.1f); }},
        UserCommand{"ui.smaller",
                    kView,
                    "Smaller interface",
                    "",
                    {'-', kCtrl},
                    [](AppState& app, std::string_view) { set_scale(app, app.view.interface_scale - 0.1f); }},
        UserCommand{
            "ui.scale",
            "",
            "Interface scale",
            "PERCENT: 50 to 300.",
            {},
            [](AppState& app, std::string_view a) { set_scale(app, numbers<float>(a, 1, 1)[0] / 100); }},
        // --- lanes ---
        UserCommand{"lane.previous",
                    kLanes,
                    "Previous lane",
                    "",
                    {kUp, 0},
                    [](AppState& app, std::string_view) { move_lane(app, -1); }},
        UserCommand{"lane.next",
                    kLanes,
                    "Next lane",
                    "",
                    {kDown, 0},
                    [](AppState& app, std::string_view) { move_lane(app, 1); }},
        UserCommand{"lane.focus", "", "Focus a lane", "INDEX", {}, focus_lane},
        UserCommand{"lane",
                    "",
                    "Change a lane",
                    "INDEX SPEC: takes effect before the next row.",
                    {},
                    [](AppState& app, std::string_view a) { engine_command(app, "lane", a); }},
        UserCommand{"lane.set",
                    "",
                    "Set options of the focused lane",
                    "KEY=VALUE[,KEY=VALUE]: dialect=released, alpha@L0-3=0.5; the others stay.",
                    {},
                    set_options},
        UserCommand{"lane.overrides",
                    kLanes,
                    "Set heads apart…",
                    "Budget, recent, alpha, tau and gain by layer and head.",
                    {'H', 0},
                    open_dialog<Dialog::overrides>},
        UserCommand{"lane.even",
                    "",
                    "Drop the lane's overrides",
                    "[FIELD]: budget, recent, alpha, tau or gain; all without.",
                    {},
                    drop_overrides},
        UserCommand{"add",
                    kLanes,
                    "Add a lane",
                    "[SPEC]: h2o without.",
                    {'N', kCtrl},
                    [](AppState& app, std::string_view a) {
                        engine_command(app, "add", a.empty() ? "h2o:budget=64" : a);
                    }},
        UserCommand{"lane.duplicate", kLanes, "Duplicate the lane", "", {'D', kCtrl}, duplicate_lane},
        UserCommand{"remove",
                    kLanes,
                    "Remove the lane",
                    "[INDEX]: the focused one without.",
                    {'W', kCtrl},
                    remove_lane},
        UserCommand{"lane.copy", kLanes, "Copy the lane's spec", "", {'C', kCtrl}, copy_lane},
        UserCommand{"lane.paste",
                    kLanes,
                    "Paste a spec into the lane",
                    "",
                    {'V', kCtrl},
                    [](AppState& app, std::string_view) { app.paste_to_lane = app.view.lane; }},
        UserCommand{
            "lane.undo",
            kLanes,
            "Undo a change of settings",
            "Evicted tokens stay gone.",
            {'Z', kCtrl},
            [](AppState& app, std::string_view) { app.say(app.desk.undo() ? "undone" : "nothing to undo"); }},
        UserCommand{"lane.redo",
                    kLanes,
                    "Redo",
                    "",
                    {'Y', kCtrl},
                    [](AppState& app,
                       std::string_view) { app.say(app.desk.redo() ? "done again" : "nothing to redo"); }},
        UserCommand{
            "follow",
            kLanes,
            "All lanes follow lane 0",
            "[on|off]: all lanes are fed lane 0's token.",
            {},
            [](AppState& app, std::string_view a) { app.desk.set_follow(on_or_off(a, app.desk.follow())); }},
        UserCommand{"shadow",
                    kLanes,
                    "Measure all lanes against full attention",
                    "[on|off]: their shadows. A lane that starts one lives its rows again.",
                    {},
                    set_shadows},
        UserCommand{"sampling",
                    "",
                    "Sampling",
                    "temperature=T,top_k=K,top_p=P",
                    {},
                    [](AppState& app, std::string_view a) { engine_command(app, "sampling", a); }},
        // --- file ---
        UserCommand{"file.open",
                    kFile,
                    "Open a trace…",
                    "[FILE.keyhole]",
                    {'O', kCtrl},
                    [](AppState& app, std::string_view a) {
                        a.empty() ? open_dialog<Dialog::open_trace>(app, {})
                                  : app.open_trace(std::filesystem::path(a));
                    }},
        UserCommand{"file.save",
                    kFile,
                    "Save the trace…",
                    "[FILE.keyhole]",
                    {'S', kCtrl},
                    [](AppState& app, std::string_view a) {
                        a.empty() ? open_dialog<Dialog::save_trace>(app, {})
                                  : app.save_trace(std::filesystem::path(a));
                    }},
        UserCommand{"file.export",
                    kFile,
                    "Export the run…",
                    "[FOLDER [LIST]]: the same files as keyhole decode.",
                    {'E', kCtrl},
                    export_run},
        UserCommand{"file.picture",
                    kFile,
                    "Save a picture of the focused view…",
                    "[FILE.png]: with axes, scale and caption.",
                    {'E', kCtrl | kShift},
                    [](AppState& app, std::string_view a) {
                        a.empty() ? open_dialog<Dialog::save_picture>(app, {})
                                  : app.save_picture(std::filesystem::path(a));
                    }},
        UserCommand{"screenshot",
                    kFile,
                    "Save a screenshot…",
                    "[FILE.png]: the window as it is.",
                    {kF12, 0},
                    [](AppState& app, std::string_view a) {
                        if (a.empty())
                            open_dialog<Dialog::save_screenshot>(app, {});
                        else
                            app.screenshot = std::filesystem::path(a);
                    }},
        UserCommand{"dump-cells",
                    "",
                    "Write cells and their pixels",
                    "FILE: 20 cells of the heat map with value and colour, as JSON.",
                    {},
                    [](AppState& app, std::string_view a) {
                        if (a.empty()) fail(ErrorCode::wrong_use, "a file is needed");
                        app.dump_cells = std::filesystem::path(a);
                    }},
        UserCommand{"quit",
                    kFile,
                    "Quit",
                    "",
                    {'Q', kCtrl},
                    [](AppState& app, std::string_view) { app.quit = true; }},
        // --- help ---
        UserCommand{"palette", kHelp, "Command palette…", "", {'P', kCtrl}, open_dialog<Dialog::palette>},
        UserCommand{"help.keys", kHelp, "Keys", "", {'/', kShift}, open_dialog<Dialog::keys>},
        UserCommand{"help.about", kHelp, "What you see", "", {kF1, 0}, open_dialog<Dialog::about>},
};

}  // namespace

std::string shortcut_text(const Shortcut& shortcut) {
    if (shortcut.code == 0) return "";
    if (shortcut == Shortcut{'/', kShift}) return "?";
    std::string text;
    if (shortcut.mods & kCtrl) text += "Ctrl+";
    if (shortcut.mods & kAlt) text += "Alt+";
    if (shortcut.mods & kShift) text += "Shift+";
    switch (shortcut.code) {
        case ' ':
            return text + "Space";
        case kEscape:
            return text + "Esc";
        case kEnter:
            return text + "Enter";
        case kTab:
            return text + "Tab";
        case kRight:
            return text + "Right";
        case kLeft:
            return text + "Left";
        case kDown:
            return text + "Down";
        case kUp:
            return text + "Up";
        case kHome:
            return text + "Home";
        case kEnd:
            return text + "End";
        case kF1:
            return text + "F1";
        case kF12:
            return text + "F12";
        default:
            return text + static_cast<char>(shortcut.code);
    }
}

std::span<const UserCommand> command_table() {
    return kTable;
}

const UserCommand* find_command(std::string_view id) {
    for (const UserCommand& command : kTable)
        if (command.id == id) return &command;
    return nullptr;
}

const UserCommand* find_command(Shortcut shortcut) {
    if (shortcut.code == 0) return nullptr;
    for (const UserCommand& command : kTable)
        if (command.shortcut == shortcut) return &command;
    return nullptr;
}

void run_command(AppState& app, std::string_view text) {
    const std::size_t blank = text.find(' ');
    const std::string_view id = text.substr(0, blank);
    std::string_view arguments = blank == std::string_view::npos ? std::string_view() : text.substr(blank);
    arguments.remove_prefix(std::min(arguments.find_first_not_of(' '), arguments.size()));
    const UserCommand* command = find_command(id);
    if (command == nullptr) {
        std::vector<std::string_view> ids;
        for (const UserCommand& known : kTable) ids.push_back(known.id);
        fail(ErrorCode::wrong_use, "no command '{}'; did you mean '{}'?", id,
             spec_text::nearest_word(id, ids));
    }
    command->action(app, arguments);
}

}  // namespace keyhole
