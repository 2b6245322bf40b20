#include "app/actions/action_areas.h"

#include "app/view/atlas_colors.h"
#include "app/view/model_words.h"
#include "app/view/range_histogram.h"
#include "engine/analysis/watched_span.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
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
    // This function does not know the canvas' size, so the heatmap panel centres on the pick.
    const std::vector<double> v = real_numbers(arguments, 1, 3);
    HeatView& heat = app.view.heat;
    heat.cell_width = heat.cell_height = std::clamp(v[0], HeatView::kMinCell, HeatView::kMaxCell);
    heat.fitted = false;
    const auto place = [&](std::size_t i) { return static_cast<int>(std::clamp(v[i], -1e9, 1e9)); };
    app.view.center_request = v.size() == 3 ? Pick{place(1), place(2)} : Pick{app.view.row, app.view.row / 2};
}

void zoom_atlas(AppState& app, std::string_view arguments) {
    const double factor = real_numbers(arguments, 1, 1)[0];
    app.view.atlas_zoom = static_cast<float>(std::clamp(factor, 1.0, double(ViewState::kLargestAtlasZoom)));
}

/// arguments: LEFT TOP CELL_WIDTH CELL_HEIGHT.
void show_region(AppState& app, std::string_view arguments) {
    const std::vector<double> v = real_numbers(arguments, 4, 4);
    const auto cell = [](double pixels) {
        return std::clamp(pixels, HeatView::kMinCell, HeatView::kMaxCell);
    };
    app.view.heat = {v[0], v[1], cell(v[2]), cell(v[3]), false};
}

/// arguments: SIDE POINTS.
void size_side(AppState& app, std::string_view arguments) {
    ViewState& view = app.view;
    const std::size_t blank = std::min(arguments.find(' '), arguments.size());
    const std::string_view side = arguments.substr(0, blank);
    const std::array<std::pair<std::string_view, float*>, 5> sides = {{{"left", &view.left_width},
                                                                       {"atlas", &view.atlas_height},
                                                                       {"right", &view.right_width},
                                                                       {"text", &view.text_height},
                                                                       {"curves", &view.curves_height}}};
    for (const auto& [name, size] : sides) {
        if (name != side) continue;
        const double points = real_numbers(arguments.substr(std::min(blank + 1, arguments.size())), 1, 1)[0];
        *size = static_cast<float>(std::clamp(points, 100.0, 10000.0));
        return;
    }
    fail(ErrorCode::wrong_use, "'{}' is no part of the window; choose from left, right, text, atlas, curves",
         side);
}

/// Selects the choice with this name, or the next one if the name is empty.
template <class Choice>
void choose(Choice& choice, const std::vector<Choice>& choices, std::string_view (*name_of)(Choice),
            std::string_view name, std::string_view what) {
    if (name.empty()) {
        const auto now = std::ranges::find(choices, choice);
        choice = now == choices.end() || now + 1 == choices.end() ? choices.front() : *(now + 1);
        return;
    }
    std::vector<std::string_view> names;
    for (const Choice one : choices) {
        names.push_back(name_of(one));
        if (name != names.back()) continue;
        choice = one;
        return;
    }
    fail(ErrorCode::wrong_use, "{} '{}' is not known; choose from {}", what, name, fmt::join(names, ", "));
}

void show_side(AppState& app, std::string_view name) {
    if (const PaneRow* row = find_pane(name)) name = row->name;
    std::vector<Pane> sides;
    for (const PaneRow& row : kPanes)
        if (has_tab(row.pane)) sides.push_back(row.pane);
    choose(app.view.side, sides, pane_name, name, "a pane");
}

void color_text(AppState& app, std::string_view name) {
    choose(app.view.text_color, {TextColor::share, TextColor::score, TextColor::age}, text_color_name, name,
           "a colour of the text");
}

void set_scale(AppState& app, float scale) {
    app.view.interface_scale = std::clamp(scale, 0.5f, 3.0f);
    app.requests.scale_changed = true;
}

/// Picks the tokens of the next or the previous place of the words.
void find_words(AppState& app, std::string_view words, bool next) {
    if (words.empty()) {
        open_dialog<Dialog::find>(app, {});
        return;
    }
    (void)config_of(app);
    const int from = app.view.pick ? app.view.pick->position : -1, lane = app.text_lane();
    const std::optional<TokenSpan> found = next ? find_span(app.run.history, lane, words, from + 1)
                                                : find_span_before(app.run.history, lane, words, from);
    if (!found) return app.notify(fmt::format("the text does not contain '{}'", words), true);
    const int row = std::max(app.view.row, found->last);
    for (int p = found->last; p >= found->first; --p)  // the first one last, so that it is the picked one
        app.view.pick_cell({row, p}, p != found->last);
    app.notify(fmt::format("'{}' at {}", words, found->text()));
}

/// Returns the numbers of a place that is written as the program writes it, such as L3.H2.
std::string place_numbers(std::string_view text) {
    std::string numbers(text);
    for (char& c : numbers)
        if (std::string_view("LlHh.,").find(c) != std::string_view::npos) c = ' ';
    return numbers;
}

void go_to(AppState& app, std::string_view arguments) {
    if (arguments.empty()) {
        open_dialog<Dialog::go_to>(app, {});
        return;
    }
    const std::vector<int> v = whole_numbers(place_numbers(arguments), 2, 3);
    const ModelConfig& model = config_of(app);
    if (v[0] < 0 || v[0] >= model.n_layers || v[1] < 0 || v[1] >= model.n_heads)
        fail(ErrorCode::wrong_use, "layers are 0 to {}, heads 0 to {}", model.n_layers - 1,
             model.n_heads - 1);
    app.view.layer = v[0];
    app.view.head = v[1];
    if (v.size() == 3) move_time(app, v[2] - app.view.row);
}

void pick(AppState& app, std::string_view arguments) {
    const auto take = [&](std::string_view word) {
        if (!arguments.ends_with(word)) return false;
        arguments.remove_suffix(word.size());
        return true;
    };
    const bool only = take(" only"), adds = take(" add") || (!only && !app.view.curve_positions.empty());
    const std::vector<int> v = whole_numbers(arguments, 2, 2);
    (void)config_of(app);
    if (v[0] < 0 || v[0] > app.run.last_row() || v[1] < 0 || v[1] > v[0])
        fail(ErrorCode::wrong_use, "steps are 0 to {}, and positions 0 to the step", app.run.last_row());
    app.view.pick_cell({v[0], v[1]}, adds);
}

/// Returns the index of a measure with a curve, or -1 for the panel's own curve. An empty name selects the
/// one after `now`.
int next_measure(const RunHistory& history, std::string_view name, int now) {
    const std::span<const CurveKind> kinds = curve_kinds();
    if (name.empty()) {
        int next = now + 1;
        while (next >= 0 && next < static_cast<int>(kinds.size()) && !has_curve(history, next)) ++next;
        return next < static_cast<int>(kinds.size()) ? next : ViewState::kWatchedSpan;
    }
    if (name == "watched") return ViewState::kWatchedSpan;
    if (name == "scores") return -1;
    const int found = curve_index(name);
    if (found >= 0 && !has_curve(history, found)) fail(ErrorCode::wrong_use, "{}", no_sinks_text(name));
    if (found >= 0) return found;
    std::vector<std::string_view> names = {"scores", "watched"};
    for (std::size_t i = 0; i < kinds.size(); ++i)
        if (has_curve(history, static_cast<int>(i))) names.push_back(kinds[i].measure);
    fail(ErrorCode::wrong_use, "'{}' has no curve; choose from {}", name, fmt::join(names, ", "));
}

/// Without a name: takes the next one that has numbers now.
void color_atlas(AppState& app, std::string_view name) {
    const std::span<const AtlasColor> colors = atlas_colors();
    if (!name.empty()) {
        std::vector<std::string_view> names;
        for (const AtlasColor& color : colors) names.push_back(color.name);
        const AtlasColor* found = atlas_color(name);
        if (found == nullptr)
            fail(ErrorCode::wrong_use, "'{}' cannot colour heads; choose from {}", name,
                 fmt::join(names, ", "));
        app.view.atlas_measure = found->code;
        return;
    }
    const std::optional<int> lane = app.shown_lane();
    const AtlasColor* now = atlas_color(app.view.atlas_measure);
    std::size_t at = now == nullptr ? 0 : to_index(static_cast<int>(now - colors.data()));
    std::optional<int> other;
    if (lane && app.other_lane() != app.view.lane) other = app.run.drawn_lane(app.other_lane());
    do at = (at + 1) % colors.size();
    while (
        at != 0 && lane &&
        !why_no_colors(colors[at], {app.run.history, *lane, app.view.row, other, app.view.watched}).empty());
    app.view.atlas_measure = colors[at].code;
}

/// Sets the range to 99 % of the cells, so that sinks do not decide it.
void fit_range(AppState& app, std::string_view) {
    (void)config_of(app);
    const bool differs = app.view.difference && app.shows_difference();
    const HeadMatrix& matrix = differs ? app.maps.difference.focus() : app.maps.lane.focus();
    const auto fitted = fitted_range(matrix.pyramid().front(), differs, 0.01);
    if (!fitted) fail(ErrorCode::wrong_use, "no cell of the head has a value");
    RangeChoice& range = app.view.range();
    range.automatic = false;
    range.low = fitted->first;
    range.high = fitted->second;
    app.notify(fmt::format("range {:.3g} to {:.3g}", range.low, range.high));
}

void choose_colors(AppState& app, std::string_view name) {
    constexpr std::array kChoice = {Colormap::viridis, Colormap::cividis, Colormap::gray};
    if (name.empty()) {
        const auto now = std::find(kChoice.begin(), kChoice.end(), app.view.colors);
        app.view.colors = now == kChoice.end() || now + 1 == kChoice.end() ? kChoice.front() : *(now + 1);
    } else {
        const auto map = colormap_from_name(name);
        if (!map || std::find(kChoice.begin(), kChoice.end(), *map) == kChoice.end())
            fail(ErrorCode::wrong_use, "'{}' is no colour map; choose viridis, cividis or gray", name);
        app.view.colors = *map;
    }
    app.notify("colours: " + std::string(colormap_name(app.view.colors)));
}

void choose_theme(AppState& app, std::string_view name) {
    Background& background = app.view.background;
    if (name.empty())
        background = background == Background::dark ? Background::light : Background::dark;
    else if (name == "dark" || name == "light")
        background = name == "light" ? Background::light : Background::dark;
    else
        fail(ErrorCode::wrong_use, "'{}' is no theme; choose dark or light", name);
    app.requests.scale_changed = true;
}

template <Colormap kColors>
bool has_colors(const AppState& app) {
    return app.view.colors == kColors;
}

constexpr std::array kColorChoices = {
    ActionChoice{"viridis", "Viridis", has_colors<Colormap::viridis>},
    ActionChoice{"cividis", "Cividis", has_colors<Colormap::cividis>},
    ActionChoice{"gray", "Grey", has_colors<Colormap::gray>},
};

template <TextColor kColor>
bool has_text_color(const AppState& app) {
    return app.view.text_color == kColor;
}

constexpr std::array kTextColorChoices = {
    ActionChoice{"share", "Share of the heads that keep a token", has_text_color<TextColor::share>},
    ActionChoice{"score", "Score in the focused head", has_text_color<TextColor::score>},
    ActionChoice{"age", "Age in steps", has_text_color<TextColor::age>},
};

constexpr std::
    array
        kViewActions =
            {
                UserAction{
                    "mode.attention",
                    "Attention",
                    "The focused head's attention probabilities.",
                    {'A', 0},
                    [](AppState& app, std::string_view) { set_mode(app, HeatMode::attention); },
                    {.menu = {MenuGroup::view_mode, 1},
                     .is_on = [](const AppState& app) { return app.view.mode == HeatMode::attention; }}},
                UserAction{"mode.mask",
                           "Mask",
                           "What the cache holds: kept, evicted in this step, evicted before.",
                           {'K', 0},
                           [](AppState& app, std::string_view) { set_mode(app, HeatMode::mask); },
                           {.menu = {MenuGroup::view_mode, 2},
                            .is_on = [](const AppState& app) { return app.view.mode == HeatMode::mask; }}},
                UserAction{"mode.score",
                           "Score",
                           "The scores by which tokens are kept, after each step.",
                           {'C', 0},
                           [](AppState& app, std::string_view) { set_mode(app, HeatMode::score); },
                           {.menu = {MenuGroup::view_mode, 3},
                            .is_on = [](const AppState& app) { return app.view.mode == HeatMode::score; }}},
                UserAction{"mask.overlay",
                           "Hatch over evicted cells",
                           "",
                           {'M', 0},
                           [](AppState& app, std::string_view a) {
                               app.view.mask_overlay = on_or_off(a, app.view.mask_overlay);
                           },
                           {.menu = {MenuGroup::view_colors, 7},
                            .is_on = [](const AppState& app) { return app.view.mask_overlay; }}},
                UserAction{
                    "range.log",
                    "Logarithmic colours",
                    "Switches a logarithmic scale. On a linear one attention sinks outshine all other cells.",
                    {'L', 0},
                    [](AppState& app, std::string_view a) {
                        app.view.range().logarithmic = on_or_off(a, app.view.range().logarithmic);
                    },
                    {.menu = {MenuGroup::view_colors, 1},
                     .is_on = [](const AppState& app) { return app.view.range().logarithmic; }}},
                UserAction{"range.auto",
                           "Automatic range",
                           "The range follows the largest value.",
                           {'R', 0},
                           [](AppState& app, std::string_view a) {
                               app.view.range().automatic = on_or_off(a, app.view.range().automatic);
                           },
                           {.menu = {MenuGroup::view_colors, 2},
                            .is_on = [](const AppState& app) { return app.view.range().automatic; }}},
                UserAction{"range.set",
                           "Set the range",
                           "LOW HIGH: fixes the range of the colours.",
                           {},
                           [](AppState& app, std::string_view a) {
                               const std::vector<double> v = real_numbers(a, 2, 2);
                               if (!(v[0] < v[1]) || v[0] < 0 || v[1] > double{kHighest<float>})
                                   fail(ErrorCode::wrong_use, "the range must satisfy 0 <= low < high");
                               app.view.range().automatic = false;
                               app.view.range().low = static_cast<float>(v[0]);
                               app.view.range().high = static_cast<float>(v[1]);
                           },
                           {.arguments_are_plain = true}},
                UserAction{"range.gamma",
                           "Set the colours' gamma",
                           "GAMMA: 0.2 to 5; below 1 brightens small values, 1 changes nothing.",
                           {},
                           [](AppState& app, std::string_view a) {
                               const double gamma = real_numbers(a, 1, 1)[0];
                               if (!(gamma >= 0.2 && gamma <= 5))
                                   fail(ErrorCode::wrong_use, "gamma is 0.2 to 5");
                               app.view.range().gamma = static_cast<float>(gamma);
                           },
                           {.arguments_are_plain = true, .is_drag = true}},
                UserAction{"range.fit",
                           "Fit the range to the cells",
                           "Sets the range that contains 99 % of the head's cells.",
                           {'R', kShift},
                           fit_range,
                           {.menu = {MenuGroup::view_colors, 3}}},
                UserAction{"range.clips",
                           "Mark values outside the range",
                           "[on|off]: gives cells outside the range their own colours.",
                           {'L', kShift},
                           [](AppState& app, std::string_view a) {
                               app.view.marks_clips = on_or_off(a, app.view.marks_clips);
                           },
                           {.menu = {MenuGroup::view_colors, 5},
                            .is_on = [](const AppState& app) { return app.view.marks_clips; }}},
                UserAction{"range.nan",
                           "Mark NaN and infinity",
                           "[on|off]: gives NaN and infinite values their own colour.",
                           {'N', kShift},
                           [](AppState& app, std::string_view a) {
                               app.view.marks_nan = on_or_off(a, app.view.marks_nan);
                           },
                           {.menu = {MenuGroup::view_colors, 6},
                            .is_on = [](const AppState& app) { return app.view.marks_nan; }}},
                UserAction{"colors",
                           "Next colours",
                           "[viridis|cividis|gray]: for attention and scores.",
                           {'C', kShift},
                           choose_colors,
                           {.menu = {MenuGroup::view_colors, 8},
                            .choices = kColorChoices,
                            .arguments_are_plain = true}},
                UserAction{"range.sinks",
                           "First tokens in the range",
                           "Whether the automatic range counts the first four tokens.",
                           {'S', 0},
                           [](AppState& app, std::string_view a) {
                               app.view.range().sinks_count = on_or_off(a, app.view.range().sinks_count);
                           },
                           {.menu = {MenuGroup::view_colors, 4},
                            .is_on = [](const AppState& app) { return app.view.range().sinks_count; }}},
                UserAction{"view.fit",
                           "Whole matrix",
                           "",
                           {'0', kCtrl},
                           [](AppState& app, std::string_view) { app.fit_rows(FittedRows::whole); },
                           {.menu = {MenuGroup::view_rows, 1},
                            .is_on =
                                [](const AppState& app) {
                                    return app.view.heat.fitted && app.first_fitted_row() == 0;
                                }}},
                UserAction{"view.decoded",
                           "Decoded steps",
                           "Shows all positions from the prompt's last token on, where lanes evict and "
                           "differ.",
                           {'9', kCtrl},
                           [](AppState& app, std::string_view) {
                               (void)config_of(app);
                               app.fit_rows(FittedRows::decoded);
                           },
                           {.menu = {MenuGroup::view_rows, 2},
                            .is_on =
                                [](const AppState& app) {
                                    return app.view.heat.fitted && app.first_fitted_row() > 0;
                                }}},
                UserAction{"view.zoom",
                           "Zoom",
                           "CELL [ROW POSITION]: pixels of a cell, and the cell in the middle.",
                           {},
                           zoom,
                           {.arguments_are_plain = true}},
                UserAction{
                    "view.region",
                    "Show a part of the matrix",
                    "LEFT TOP WIDTH HEIGHT: the position and the row at the canvas' corner, and the pixels "
                    "of a cell.",
                    {},
                    show_region,
                    {.arguments_are_plain = true, .is_drag = true}},
                UserAction{
                    "view.size",
                    "Set the size of a part of the window",
                    "left|right|text|atlas|curves POINTS: at least 100; the other panes share the rest.",
                    {},
                    size_side,
                    {.elsewhere = "the borders between panes", .arguments_are_plain = true, .is_drag = true}},
                UserAction{"view.reset",
                           "Reset the layout",
                           "Gives every pane its first size.",
                           {},
                           [](AppState& app, std::string_view) {
                               ViewState& view = app.view;
                               view.left_width = view.right_width = view.atlas_height = view.text_height = 0;
                               view.curves_height = 0;
                           },
                           {.menu = {MenuGroup::view_window, 2}}},
                UserAction{
                    "layer.previous",
                    "Previous layer",
                    "",
                    {'[', 0},
                    [](AppState& app, std::string_view) { app.view.move_layer(-1, config_of(app).n_layers); },
                    {.menu = {MenuGroup::view_head, 1}}},
                UserAction{
                    "layer.next",
                    "Next layer",
                    "",
                    {']', 0},
                    [](AppState& app, std::string_view) { app.view.move_layer(1, config_of(app).n_layers); },
                    {.menu = {MenuGroup::view_head, 2}}},
                UserAction{
                    "head.previous",
                    "Previous head",
                    "",
                    {',', 0},
                    [](AppState& app, std::string_view) { app.view.move_head(-1, config_of(app).n_heads); },
                    {.menu = {MenuGroup::view_head, 3}}},
                UserAction{
                    "head.next",
                    "Next head",
                    "",
                    {'.', 0},
                    [](AppState& app, std::string_view) { app.view.move_head(1, config_of(app).n_heads); },
                    {.menu = {MenuGroup::view_head, 4}}},
                UserAction{"goto",
                           "Go to layer, head, step…",
                           "LAYER HEAD [STEP]",
                           {'G', kCtrl},
                           go_to,
                           {.menu = {MenuGroup::edit_find, 2}, .lacks = need::steps}},
                UserAction{"find",
                           "Find words…",
                           "TEXT: picks the tokens of its next place in the text.",
                           {'F', kCtrl},
                           [](AppState& app, std::string_view a) { find_words(app, a, true); },
                           {.menu = {MenuGroup::edit_find, 1}, .lacks = need::steps}},
                UserAction{"find.previous",
                           "Find words before",
                           "TEXT: picks the tokens of its previous place in the text.",
                           {},
                           [](AppState& app, std::string_view a) { find_words(app, a, false); },
                           {.elsewhere = "the dialog Find words", .lacks = need::steps}},
                UserAction{"pick",
                           "Pick a cell",
                           "ROW POSITION [add|only]: adds the token's curve to the others (default), or "
                           "drops them.",
                           {},
                           pick,
                           {.arguments_are_plain = true}},
                UserAction{
                    "pick.up",
                    "Pick: one row up",
                    "",
                    {kUp, kAlt},
                    [](AppState& app, std::string_view) { app.view.move_pick(-1, 0, app.run.last_row()); },
                    {.elsewhere = "a key"}},
                UserAction{
                    "pick.down",
                    "Pick: one row down",
                    "",
                    {kDown, kAlt},
                    [](AppState& app, std::string_view) { app.view.move_pick(1, 0, app.run.last_row()); },
                    {.elsewhere = "a key"}},
                UserAction{
                    "pick.left",
                    "Pick: one position left",
                    "",
                    {kLeft, kAlt},
                    [](AppState& app, std::string_view) { app.view.move_pick(0, -1, app.run.last_row()); },
                    {.elsewhere = "a key"}},
                UserAction{
                    "pick.right",
                    "Pick: one position right",
                    "",
                    {kRight, kAlt},
                    [](AppState& app, std::string_view) { app.view.move_pick(0, 1, app.run.last_row()); },
                    {.elsewhere = "a key"}},
                UserAction{"pick.clear",
                           "Drop the picks",
                           "",
                           {kEscape, 0},
                           [](AppState& app, std::string_view) {
                               app.view.pick.reset();
                               app.view.curve_positions.clear();
                           },
                           {.menu = {MenuGroup::edit_find, 3}, .lacks = need::pick}},
                UserAction{"curves",
                           "Curves of the next measure",
                           "[scores|watched|MEASURE]: kl, retained_mass, cosine_ideal…; without a name: the "
                           "next one.",
                           {'V', 0},
                           [](AppState& app, std::string_view a) {
                               app.view.measure_curve =
                                   next_measure(app.run.history, a, app.view.measure_curve);
                           },
                           {.menu = {MenuGroup::view_curves, 1}, .arguments_are_plain = true}},
                UserAction{"atlas.color",
                           "Colour the atlas by the next choice",
                           "[attention|watched|sink_share|…]: by a number of every head at the shown step; "
                           "without a name: by the next one that has numbers.",
                           {'V', kShift},
                           color_atlas,
                           {.menu = {MenuGroup::view_curves, 2}}},
                UserAction{
                    "atlas.zoom",
                    "Zoom of the atlas",
                    "FACTOR: 1 to 16; with 1 all heads fit into the width. Alt and the wheel do the same.",
                    {},
                    zoom_atlas},
                UserAction{"text.color",
                           "Colour the text by the next measure",
                           "[share|score|age]: share of the heads that keep a token, its score in the "
                           "focused head, or "
                           "steps since it was read.",
                           {'T', 0},
                           color_text,
                           {.menu = {MenuGroup::view_text, 1}, .choices = kTextColorChoices}},
                UserAction{"view.side",
                           "Next pane of the side column",
                           "[lanes|atlas|curves|details|text|heatmap]: for small windows, in which panes "
                           "share a column.",
                           {'A', kShift},
                           show_side,
                           {.menu = {MenuGroup::view_window, 1}}},
                UserAction{
                    "ui.larger",
                    "Larger interface",
                    "",
                    {'=', kCtrl},
                    [](AppState& app, std::string_view) { set_scale(app, app.view.interface_scale + 0.1f); },
                    {.menu = {MenuGroup::view_window, 4}}},
                UserAction{
                    "ui.smaller",
                    "Smaller interface",
                    "",
                    {'-', kCtrl},
                    [](AppState& app, std::string_view) { set_scale(app, app.view.interface_scale - 0.1f); },
                    {.menu = {MenuGroup::view_window, 5}}},
                UserAction{
                    "ui.theme",
                    "Light theme",
                    "[dark|light]: light suits projectors and print; without a name: the other one.",
                    {},
                    choose_theme,
                    {.menu = {MenuGroup::view_window, 3},
                     .is_on = [](const AppState& app) { return app.view.background == Background::light; }}},
                UserAction{"ui.scale",
                           "Interface scale",
                           "PERCENT: 50 to 300.",
                           {},
                           [](AppState& app, std::string_view a) {
                               set_scale(app, static_cast<float>(real_numbers(a, 1, 1)[0] / 100));
                           },
                           {.arguments_are_plain = true}},
};

}  // namespace

std::span<const UserAction> view_actions() {
    return kViewActions;
}

}  // namespace keyhole
