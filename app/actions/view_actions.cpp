#include "app/actions/action_areas.h"

#include "app/view/range_histogram.h"
#include "engine/base/error.h"
#include "engine/base/number.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <vector>

namespace keyhole {

namespace {

using namespace key;

void set_mode(AppState& app, HeatMode mode) {
    app.view.mode = mode;
}

void zoom(AppState& app, std::string_view arguments) {
    // The canvas' size is not known here: the heatmap panel centres on the pick.
    const std::vector<double> v = real_numbers(arguments, 1, 3);
    HeatView& heat = app.view.heat;
    heat.cell_width = heat.cell_height = std::clamp(v[0], HeatView::kMinCell, HeatView::kMaxCell);
    heat.fitted = false;
    const auto place = [&](std::size_t i) { return static_cast<int>(std::clamp(v[i], -1e9, 1e9)); };
    app.view.center_request = v.size() == 3 ? Pick{place(1), place(2)} : Pick{app.view.row, app.view.row / 2};
}

/// The next choice without a name, else the one that is called so.
template <class Choice, std::size_t n>
void choose(Choice& choice, const std::array<Choice, n>& choices, std::string_view (*name_of)(Choice),
            std::string_view name, std::string_view what) {
    if (name.empty()) {
        choice = choices[(static_cast<std::size_t>(choice) + 1) % n];
        return;
    }
    std::vector<std::string_view> names;
    for (const Choice one : choices) {
        names.push_back(name_of(one));
        if (name != names.back()) continue;
        choice = one;
        return;
    }
    fail(ErrorCode::wrong_use, "{} '{}' is not known; there are {}", what, name, fmt::join(names, ", "));
}

void show_side(AppState& app, std::string_view name) {
    choose(app.view.side,
           std::array{SidePane::lanes, SidePane::atlas, SidePane::curves, SidePane::info, SidePane::text},
           side_pane_name, name, "a pane");
}

void color_strip(AppState& app, std::string_view name) {
    choose(app.view.strip, std::array{StripColor::share, StripColor::score, StripColor::age},
           strip_color_name, name, "a colour of the text");
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
    (void)config_of(app);
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
    const std::vector<int> v = whole_numbers(arguments, 2, 3);
    const ModelConfig& model = config_of(app);
    if (v[0] < 0 || v[0] >= model.n_layers || v[1] < 0 || v[1] >= model.n_heads)
        fail(ErrorCode::wrong_use, "layers are 0 to {}, heads 0 to {}", model.n_layers - 1,
             model.n_heads - 1);
    app.view.layer = v[0];
    app.view.head = v[1];
    if (v.size() == 3) move_time(app, v[2] - app.view.row);
}

void pick(AppState& app, std::string_view arguments) {
    const std::vector<int> v = whole_numbers(arguments, 2, 2);
    (void)config_of(app);
    if (v[0] < 0 || v[0] > app.last_row() || v[1] < 0 || v[1] > v[0])
        fail(ErrorCode::wrong_use, "rows are 0 to {}, positions up to the row", app.last_row());
    app.view.pick_cell({v[0], v[1]}, !app.view.curve_positions.empty());
}

/// Index of a measure with a curve, -1 for the panel's own; the one after `now` without a name. Of heads: only those of a shadow.
int next_measure(std::string_view name, int now, bool of_heads) {
    const std::span<const CurveKind> kinds = curve_kinds();
    const auto fits = [&](int i) {
        return i < 0 || !of_heads || kinds[static_cast<std::size_t>(i)].needs_shadow;
    };
    if (name.empty()) {
        const int last = static_cast<int>(kinds.size()) - 1;
        do now = now < last ? now + 1 : ViewState::kWatchedSpan;
        while (!fits(now));
        return now;
    }
    if (name == "watched") return ViewState::kWatchedSpan;
    const std::string_view own = of_heads ? "attention" : "scores";
    if (name == own) return -1;
    const int found = curve_index(name);
    if (found >= 0 && fits(found)) return found;
    std::vector<std::string_view> names = {own, "watched"};
    for (const CurveKind& kind : kinds)
        if (fits(curve_index(kind.measure))) names.push_back(kind.measure);
    fail(ErrorCode::wrong_use, "'{}' has no curve; one of {}", name, fmt::join(names, ", "));
}

/// 99 % of the cells, whatever a sink does.
void fit_range(AppState& app, std::string_view) {
    (void)config_of(app);
    const bool differs = app.view.difference && app.shows_difference();
    const HeadMatrix& matrix = differs ? app.difference.focus() : app.heat.focus();
    const auto fitted = fitted_range(matrix.pyramid().front(), differs, 0.01);
    if (!fitted) fail(ErrorCode::wrong_use, "no cell of the head has a value");
    RangeChoice& range = app.view.range();
    range.automatic = false;
    range.low = fitted->first;
    range.high = fitted->second;
    app.say(fmt::format("range {:.3g} to {:.3g}", range.low, range.high));
}

void choose_colors(AppState& app, std::string_view name) {
    constexpr std::array kChoice = {Colormap::viridis, Colormap::cividis, Colormap::gray};
    if (name.empty()) {
        const auto now = std::find(kChoice.begin(), kChoice.end(), app.view.colors);
        app.view.colors = now == kChoice.end() || now + 1 == kChoice.end() ? kChoice.front() : *(now + 1);
    } else {
        const auto map = colormap_from_name(name);
        if (!map || std::find(kChoice.begin(), kChoice.end(), *map) == kChoice.end())
            fail(ErrorCode::wrong_use, "'{}': viridis, cividis or gray", name);
        app.view.colors = *map;
    }
    app.say("colours: " + std::string(colormap_name(app.view.colors)));
}

constexpr std::array kTable = {
    UserAction{"mode.attention",
               menu::kView,
               "Attention",
               "The focused head's attention probabilities.",
               {'A', 0},
               [](AppState& app, std::string_view) { set_mode(app, HeatMode::attention); }},
    UserAction{"mode.mask",
               menu::kView,
               "Mask",
               "What the cache holds: kept, evicted by the row, gone.",
               {'K', 0},
               [](AppState& app, std::string_view) { set_mode(app, HeatMode::mask); }},
    UserAction{"mode.score",
               menu::kView,
               "Score",
               "The scores by which tokens are kept, after each row.",
               {'C', 0},
               [](AppState& app, std::string_view) { set_mode(app, HeatMode::score); }},
    UserAction{"mask.overlay",
               menu::kView,
               "Hatch over evicted cells",
               "",
               {'M', 0},
               [](AppState& app, std::string_view a) {
                   app.view.mask_overlay = on_or_off(a, app.view.mask_overlay);
               }},
    UserAction{"range.log",
               menu::kView,
               "Logarithmic colours",
               "Attention sinks swamp a linear scale.",
               {'L', 0},
               [](AppState& app, std::string_view a) {
                   app.view.range().logarithmic = on_or_off(a, app.view.range().logarithmic);
               }},
    UserAction{"range.auto",
               menu::kView,
               "Automatic range",
               "The range follows the largest value.",
               {'R', 0},
               [](AppState& app, std::string_view a) {
                   app.view.range().automatic = on_or_off(a, app.view.range().automatic);
               }},
    UserAction{"range.set",
               "",
               "Set the range",
               "LOW HIGH: fixes the range of the colours.",
               {},
               [](AppState& app, std::string_view a) {
                   const std::vector<double> v = real_numbers(a, 2, 2);
                   if (!(v[0] < v[1]) || v[0] < 0 || v[1] > double{kHighest<float>})
                       fail(ErrorCode::wrong_use, "0 <= low < high");
                   app.view.range().automatic = false;
                   app.view.range().low = static_cast<float>(v[0]);
                   app.view.range().high = static_cast<float>(v[1]);
               }},
    UserAction{"range.gamma",
               "",
               "Set the colours' gamma",
               "GAMMA: 0.2 to 5; below 1 lifts small values, 1 leaves the scale straight.",
               {},
               [](AppState& app, std::string_view a) {
                   const double gamma = real_numbers(a, 1, 1)[0];
                   if (!(gamma >= 0.2 && gamma <= 5)) fail(ErrorCode::wrong_use, "gamma is 0.2 to 5");
                   app.view.range().gamma = static_cast<float>(gamma);
               }},
    UserAction{"range.fit",
               menu::kView,
               "Fit the range to the cells",
               "To what 99 % of the cells of the head lie between.",
               {'R', kShift},
               fit_range},
    UserAction{
        "range.clips",
        menu::kView,
        "Mark values beyond the range",
        "[on|off]: cells that the colours clip have colours of their own.",
        {'L', kShift},
        [](AppState& app, std::string_view a) { app.view.marks_clips = on_or_off(a, app.view.marks_clips); }},
    UserAction{
        "range.nan",
        menu::kView,
        "Mark what is no number",
        "[on|off]: NaN and infinite values have a colour of their own.",
        {'N', kShift},
        [](AppState& app, std::string_view a) { app.view.marks_nan = on_or_off(a, app.view.marks_nan); }},
    UserAction{"colors",
               menu::kView,
               "Next colours",
               "[viridis|cividis|gray]: of attention and scores.",
               {'C', kShift},
               choose_colors},
    UserAction{"range.sinks",
               menu::kView,
               "First tokens in the range",
               "Whether the first four tokens take part in the automatic range.",
               {'S', 0},
               [](AppState& app, std::string_view a) {
                   app.view.range().sinks_count = on_or_off(a, app.view.range().sinks_count);
               }},
    UserAction{"view.fit",
               menu::kView,
               "Whole matrix",
               "",
               {'0', kCtrl},
               [](AppState& app, std::string_view) { app.fit_rows(FittedRows::whole); }},
    UserAction{"view.decoded",
               menu::kView,
               "Decoded rows",
               "From the prompt's last row on, where lanes evict and differ; all positions.",
               {'9', kCtrl},
               [](AppState& app, std::string_view) {
                   (void)config_of(app);
                   app.fit_rows(FittedRows::decoded);
               }},
    UserAction{"view.zoom",
               "",
               "Zoom",
               "CELL [ROW POSITION]: pixels of a cell, and the cell in the middle.",
               {},
               zoom},
    UserAction{"layer.previous",
               menu::kView,
               "Previous layer",
               "",
               {'[', 0},
               [](AppState& app, std::string_view) { app.view.move_layer(-1, config_of(app).n_layers); }},
    UserAction{"layer.next",
               menu::kView,
               "Next layer",
               "",
               {']', 0},
               [](AppState& app, std::string_view) { app.view.move_layer(1, config_of(app).n_layers); }},
    UserAction{"head.previous",
               menu::kView,
               "Previous head",
               "",
               {',', 0},
               [](AppState& app, std::string_view) { app.view.move_head(-1, config_of(app).n_heads); }},
    UserAction{"head.next",
               menu::kView,
               "Next head",
               "",
               {'.', 0},
               [](AppState& app, std::string_view) { app.view.move_head(1, config_of(app).n_heads); }},
    UserAction{"goto", menu::kView, "Go to layer, head, row…", "LAYER HEAD [ROW]", {'G', kCtrl}, go_to},
    UserAction{"find",
               menu::kView,
               "Find a token…",
               "TEXT: picks the next token with it.",
               {'F', kCtrl},
               find_token},
    UserAction{"pick", "", "Pick a cell", "ROW POSITION", {}, pick},
    UserAction{"pick.up",
               "",
               "Pick: one row up",
               "",
               {kUp, kAlt},
               [](AppState& app, std::string_view) { app.view.move_pick(-1, 0, app.last_row()); }},
    UserAction{"pick.down",
               "",
               "Pick: one row down",
               "",
               {kDown, kAlt},
               [](AppState& app, std::string_view) { app.view.move_pick(1, 0, app.last_row()); }},
    UserAction{"pick.left",
               "",
               "Pick: one position left",
               "",
               {kLeft, kAlt},
               [](AppState& app, std::string_view) { app.view.move_pick(0, -1, app.last_row()); }},
    UserAction{"pick.right",
               "",
               "Pick: one position right",
               "",
               {kRight, kAlt},
               [](AppState& app, std::string_view) { app.view.move_pick(0, 1, app.last_row()); }},
    UserAction{"pick.clear",
               menu::kView,
               "Drop the picks",
               "",
               {kEscape, 0},
               [](AppState& app, std::string_view) {
                   app.view.pick.reset();
                   app.view.curve_positions.clear();
               }},
    UserAction{"curves",
               menu::kView,
               "Curves of the next measure",
               "[scores|watched|MEASURE]: kl, retained_mass, cosine_ideal…; the next one without.",
               {'V', 0},
               [](AppState& app, std::string_view a) {
                   app.view.measure_curve = next_measure(a, app.view.measure_curve, false);
               }},
    UserAction{"atlas.color",
               menu::kView,
               "Colour the atlas by the next measure",
               "[attention|watched|MEASURE]: of every head at the shown row; the next one without. Measures "
               "need a shadow.",
               {'V', kShift},
               [](AppState& app, std::string_view a) {
                   app.view.atlas_measure = next_measure(a, app.view.atlas_measure, true);
               }},
    UserAction{
        "strip.color",
        menu::kView,
        "Colour the text by the next measure",
        "[share|score|age]: share of the heads that hold a token, its score in the focused head, rows since "
        "it was read.",
        {'T', 0},
        color_strip},
    UserAction{
        "view.side",
        menu::kView,
        "Next pane of the side column",
        "[lanes|atlas|curves|info|text]: where a small window or a large interface makes panes share one.",
        {'A', kShift},
        show_side},
    UserAction{"ui.larger",
               menu::kView,
               "Larger interface",
               "",
               {'=', kCtrl},
               [](AppState& app, std::string_view) { set_scale(app, app.view.interface_scale + 0.1f); }},
    UserAction{"ui.smaller",
               menu::kView,
               "Smaller interface",
               "",
               {'-', kCtrl},
               [](AppState& app, std::string_view) { set_scale(app, app.view.interface_scale - 0.1f); }},
    UserAction{"ui.scale",
               "",
               "Interface scale",
               "PERCENT: 50 to 300.",
               {},
               [](AppState& app, std::string_view a) {
                   set_scale(app, static_cast<float>(real_numbers(a, 1, 1)[0] / 100));
               }},
};

}  // namespace

std::span<const UserAction> view_actions() {
    return kTable;
}

}  // namespace keyhole
