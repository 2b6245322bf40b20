#include "app/panels/curves_panel.h"

#include "app/panels/measure_plot.h"
#include "app/panels/watched_plot.h"
#include "app/panels/wrapped_field.h"
#include "engine/analysis/measure_table.h"
#include "engine/analysis/run_rows.h"
#include "engine/analysis/score_range.h"
#include "engine/base/index.h"
#include "engine/figure/ticks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

namespace keyhole {

namespace {

struct Line {
    std::span<const float> values;  // one value a record; NaN: none
    ImU32 color = 0;
    float width = 1.6f;
};

ImU32 curve_color(std::size_t i) {
    static constexpr std::array kLanes = {1, 2, 3, 4, 0, 5};  // none is the threshold's orange
    return theme::lane_color(kLanes[i % kLanes.size()]);
}

/// Returns the name by which the action `curves` knows a curve.
std::string_view action_word(int kind) {
    if (kind == ViewState::kWatchedSpan) return "watched";
    return kind < 0 ? "scores" : curve_kinds()[to_index(kind)].measure;
}

/// Draws the choice between scores of picked tokens and a measure of all lanes.
void draw_choice(const PanelContext& context) {
    const ViewState& view = context.app.view;
    const auto name = [](int kind) {
        return kind == ViewState::kWatchedSpan ? std::string("Watched words")
               : kind < 0                      ? std::string("Scores")
                          : std::string(measure(curve_kinds()[to_index(kind)].measure).label);
    };
    const ScopedFont title(context.fonts.bold);
    ImGui::SetNextItemWidth(context.px(172));
    ScopedCombo combo("##curves", name(view.measure_curve).c_str(), ImGuiComboFlags_HeightLarge);
    if (!combo.open()) mark_item(context, "curves");
    const ScopedFont words(context.fonts.book);
    if (!combo.open())
        return tooltip(
            context,
            view.measure_curve == ViewState::kWatchedSpan
                ? "Share of the watched words that each lane keeps, mean over KV heads. ×: no head keeps all "
                  "of them any more."
            : view.measure_curve < 0
                ? "Scores of the picked tokens and the eviction threshold, or a measure of all lanes."
                : measure_tooltip(curve_kinds()[to_index(view.measure_curve)].measure));
    for (int kind = ViewState::kWatchedSpan; kind < static_cast<int>(curve_kinds().size()); ++kind) {
        if (kind >= 0 && !has_curve(context.app.run.history, kind)) continue;
        if (combo.item(name(kind).c_str(), kind == view.measure_curve))
            run(context, fmt::format("curves {}", action_word(kind)));
        if (kind < 0) continue;
        const CurveKind& about = curve_kinds()[to_index(kind)];
        mark_item(context, fmt::format("curves {}", about.measure));
        tooltip(context,
                measure_tooltip(about.measure) + (about.needs_shadow ? "\nNeeds the lane's shadow." : ""));
    }
}

/// Draws a measure of all lanes, and a way to switch a shadow on if the measure needs one.
void draw_measure(const PanelContext& context) {
    const AppState& app = context.app;
    const CurveKind& about = curve_kinds()[to_index(app.view.measure_curve)];
    const bool all_shadowed =
        std::all_of(app.run.lane_editor.lanes().begin(), app.run.lane_editor.lanes().end(),
                    [](const LaneSpec& lane) { return lane.policy.shadow; });
    const Measure& of = measure(about.measure);
    const std::string_view unit = of.unit != "1"                 ? of.unit
                                  : about.measure == "agreement" ? "share"
                                                                 : "mean over heads";
    ImGui::SameLine();
    if (about.needs_shadow && !all_shadowed && app.run.live())
        action_button(context, "shadow", "measure all lanes");
    else
        dim_text(context, fmt::format("{} · values of step {}", unit, app.view.row));
    draw_measure_plot(context, app.view.measure_curve, ImGui::GetContentRegionAvail(), true);
}

/// The plot of scores in its frame.
struct ScorePlot {
    ImDrawList& list;
    ImVec2 min, size;
    const StepList& steps;
    ScoreRange range;
    float text_line;
    float dot;  ///< radius of a value without neighbours

    int first() const { return steps.front()->row; }
    int last() const { return std::max(steps.back()->row, first() + 1); }
    float x_of(int row) const {
        return min.x + size.x * static_cast<float>(row - first()) / static_cast<float>(last() - first());
    }
    // A margin keeps the ends of the axis visible. Values below the range run along the bottom.
    float y_of(float value) const { return min.y + size.y * (0.97f - 0.94f * range.part(value)); }
};

/// Draws a line through its values, with gaps where there are none; y_of: value to y.
template <class YOf>
void draw_line(const ScorePlot& plot, const Line& line, YOf y_of) {
    const std::span<const float> values = line.values;
    const auto known = [&](std::size_t i) { return i < values.size() && values[i] >= 0; };
    for (std::size_t i = 0; i < values.size(); ++i) {
        if (!known(i)) continue;
        const ImVec2 here(plot.x_of(plot.steps[i]->row), y_of(values[i]));
        if (!known(i + 1) && (i == 0 || !known(i - 1))) plot.list.AddCircleFilled(here, plot.dot, line.color);
        if (known(i + 1))
            plot.list.AddLine(here, {plot.x_of(plot.steps[i + 1]->row), y_of(values[i + 1])}, line.color,
                              line.width);
    }
}

void draw_score_axis(const PanelContext& context, const ScorePlot& plot) {
    const int most = std::clamp(static_cast<int>(plot.size.y / (2 * plot.text_line)), 2, 8);
    for (const auto& [tick, text] :
         labelled(log_ticks(double(plot.range.low), double(plot.range.high), most))) {
        const float y = plot.y_of(static_cast<float>(tick));
        plot.list.AddLine({plot.min.x, y}, {plot.min.x + plot.size.x, y}, theme::colors().grid);
        plot.list.AddText(
            {plot.min.x - ImGui::CalcTextSize(text.c_str()).x - context.px(4), y - plot.text_line / 2},
            theme::colors().dim, text.c_str());
    }
}

/// Draws tau in the lowest third, from its smallest to its largest value; nothing if it is constant.
void draw_tau(const ScorePlot& plot, const Line& tau) {
    float low = 1e30f, high = 0;
    for (const float v : tau.values)
        if (v > 0) low = std::min(low, v), high = std::max(high, v);
    if (!(high > low)) return;
    draw_line(plot, tau, [&](float v) {
        return plot.min.y + plot.size.y - 2 - (plot.size.y * 0.3f) * (v - low) / (high - low);
    });
}

/// Draws a cross where a token was evicted.
void draw_eviction(const ScorePlot& plot, const Line& line, std::int32_t evicted) {
    if (evicted < plot.first() || evicted > plot.last()) return;
    const float value = line.values[to_index(evicted - plot.first())];
    if (!(value >= 0)) return;
    const ImVec2 at(plot.x_of(evicted), plot.y_of(value));
    plot.list.AddLine({at.x - 4, at.y - 4}, {at.x + 4, at.y + 4}, line.color, 2);
    plot.list.AddLine({at.x - 4, at.y + 4}, {at.x + 4, at.y - 4}, line.color, 2);
}

/// The lines of the picked tokens, and those that they are compared with.
struct ScoreLines {
    Line threshold, tau;
    std::vector<Line> tokens;
    std::vector<float> of_tokens() const {
        std::vector<float> values;
        for (const Line& line : tokens) values.insert(values.end(), line.values.begin(), line.values.end());
        return values;
    }
};

ScoreLines score_lines(const ScoreCurves& curves) {
    ScoreLines lines{
        {curves.threshold, theme::colors().warm, 2.2f}, {curves.tau, theme::colors().faint, 1.2f}, {}};
    for (std::size_t c = 0; c < curves.scores.size(); ++c)
        lines.tokens.push_back({curves.scores[c], curve_color(c), 1.6f});
    return lines;
}

void draw_no_scores(const PanelContext& context, const ScorePlot& plot, bool has_picks) {
    WrappedText words;
    words.set(has_picks ? "no score recorded here"
                        : "Click a cell or a word to see its score and the eviction threshold.",
              plot.size.x - context.px(16), drawn_width);
    plot.list.AddText({plot.min.x + context.px(8), plot.min.y + context.px(8)}, theme::colors().dim,
                      words.shown().c_str());
}

void draw_scores(const PanelContext& context, const ScorePlot& plot, const ScoreLines& lines, int lane,
                 int kv_head) {
    const AppState& app = context.app;
    draw_score_axis(context, plot);
    plot.list.PushClipRect(plot.min, {plot.min.x + plot.size.x, plot.min.y + plot.size.y}, true);
    const auto y_of = [&](float v) { return plot.y_of(v); };
    draw_tau(plot, lines.tau);
    draw_line(plot, lines.threshold, y_of);
    for (std::size_t c = 0; c < lines.tokens.size(); ++c) {
        draw_line(plot, lines.tokens[c], y_of);
        draw_eviction(plot, lines.tokens[c],
                      app.run.history.evicted_at(lane, kv_head, app.view.curve_positions[c]));
    }
    finish_row_plot(plot.list, plot.min, plot.size, plot.x_of(app.view.row), plot.first(),
                    plot.steps.back()->row);
}

/// Draws the legend in two columns below the plot.
void draw_score_legend(const PanelContext& context, const ScorePlot& plot, const ScoreLines& lines, int lane,
                       int kv_head, ImVec2 origin, float width) {
    const AppState& app = context.app;
    const float top = plot.min.y + plot.size.y + plot.text_line + context.px(5),
                column = (width - context.px(4)) / 2;
    std::size_t slot = 0;
    const auto entry = [&](const Line& line, const std::string& text) {
        const ImVec2 at(origin.x + column * static_cast<float>(slot % 2),
                        top + plot.text_line * static_cast<float>(slot / 2));
        ++slot;
        const float y = at.y + plot.text_line / 2;
        plot.list.AddLine({at.x, y}, {at.x + context.px(14), y}, line.color, line.width);
        plot.list.AddText({at.x + context.px(19), at.y}, theme::colors().dim,
                          fitted(text, column - context.px(22)).c_str());
    };
    entry(lines.threshold, "threshold");
    const int step = std::clamp(app.view.row - plot.first(), 0, static_cast<int>(plot.steps.size()) - 1);
    entry(lines.tau, fmt::format("tau {}", number_text(double(lines.tau.values[to_index(step)]))));
    for (std::size_t c = 0; c < lines.tokens.size(); ++c) {
        const int p = app.view.curve_positions[c];
        const std::int32_t evicted = app.run.history.evicted_at(lane, kv_head, p);
        entry(lines.tokens[c], fmt::format("{} “{}”{}", p, token_words(app, lane, p),
                                           evicted >= 0 ? fmt::format(" × {}", evicted) : ""));
    }
}

}  // namespace

void draw(CurvesPanel& panel, const PanelContext& context) {
    const AppState& app = context.app;
    draw_choice(context);
    if (!app.run.has_steps()) return;
    if (app.view.measure_curve == ViewState::kWatchedSpan) return draw_watched_plot(context);
    if (app.view.measure_curve >= 0) return draw_measure(context);
    if (!shows_lane(context, "curves", app.view.lane)) return;
    ImGui::SameLine();
    const int lane = *app.shown_lane(), g = app.focused_kv_head();
    dim_text(context, kv_head_text(app.run.history.layout(lane), g) + " · over the steps");
    draw_lane_mark(context, app.view.lane);

    panel.scores.update(app.run.history, lane, g, app.view.curve_positions);
    const ScoreLines lines = score_lines(panel.scores);
    const std::vector<float> picked = lines.of_tokens();
    const ScopedFont font(context.fonts.small);
    const float text_line = ImGui::GetFontSize();
    const ImVec2 origin = ImGui::GetCursorScreenPos(), room = ImGui::GetContentRegionAvail();
    const float left = context.px(44),
                legend = text_line * static_cast<float>((lines.tokens.size() + 3) / 2) + context.px(4);
    const ScorePlot plot{*ImGui::GetWindowDrawList(),
                         {origin.x + left, origin.y + context.px(4)},
                         {room.x - left - context.px(6), room.y - legend - text_line - context.px(10)},
                         app.run.history.steps(),
                         score_range(lines.threshold.values, {picked}),
                         text_line,
                         context.px(2.5f)};
    if (plot.size.x < 30 || plot.size.y < 30) return;
    plot.list.AddRectFilled(plot.min, {plot.min.x + plot.size.x, plot.min.y + plot.size.y},
                            theme::colors().inset, 3);
    const auto positive = [](float v) { return v > 0; };
    if (std::ranges::any_of(lines.threshold.values, positive) || std::ranges::any_of(picked, positive))
        draw_scores(context, plot, lines, lane, g);
    else
        draw_no_scores(context, plot, !lines.tokens.empty());
    draw_score_legend(context, plot, lines, lane, g, origin, room.x);
}

}  // namespace keyhole
