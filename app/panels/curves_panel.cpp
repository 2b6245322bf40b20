#include "app/panels/curves_panel.h"

#include "app/panels/measure_plot.h"
#include "app/panels/watched_plot.h"
#include "app/panels/wrapped_field.h"
#include "engine/analysis/run_rows.h"
#include "engine/analysis/score_range.h"
#include "engine/base/index.h"
#include "engine/figure/ticks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>

namespace keyhole {

namespace {

struct Line {
    std::span<const float> values;  // one value a record; NaN: none
    std::string name;
    ImU32 color = 0;
    float width = 1.6f;
};

ImU32 curve_color(std::size_t i) {
    static constexpr std::array kLanes = {1, 2, 3, 4, 0, 5};  // none is the threshold's orange
    return theme::lane_color(kLanes[i % kLanes.size()]);
}

}  // namespace

namespace {

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
    const std::string_view unit = about.measure == "kl" || about.measure == "entropy" ? "nats"
                                  : about.measure == "agreement"                      ? "share"
                                                                                      : "mean over heads";
    ImGui::SameLine();
    if (about.needs_shadow && !all_shadowed && app.run.live())
        command_button(context, "shadow", "measure all lanes");
    else
        dim_text(context, fmt::format("{} · values of step {}", unit, app.view.row));
    draw_measure_plot(context, app.view.measure_curve, ImGui::GetContentRegionAvail(), true);
}

}  // namespace

void ScoreCurves::update(const RunHistory& history, int of_lane, int of_head, const std::vector<int>& of) {
    const auto key = std::tuple(history.generation(), of_lane, of_head, of);
    if (key != key_) {
        key_ = key;
        n_rows_ = 0;
        threshold.clear();
        tau.clear();
        scores.assign(of.size(), {});
    }
    constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> row;
    for (const StepList& steps = history.steps(); n_rows_ < steps.size(); ++n_rows_) {
        const int r = steps[n_rows_]->row;
        const LaneRecord* record = history.lane_record(r, of_lane);
        threshold.push_back(threshold_at(history, of_lane, r, of_head));
        tau.push_back(record == nullptr ? kNone : record->tau);
        row.resize(to_index(r) + 1);
        const bool known = !of.empty() && score_values(history, of_lane, r, of_head, row);
        for (std::size_t c = 0; c < of.size(); ++c)
            scores[c].push_back(known && of[c] <= r ? row[to_index(of[c])] : kNone);
    }
}

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
    const StepList& steps = app.run.history.steps();
    const std::size_t n = steps.size();

    ScoreCurves& curves = panel.scores;
    curves.update(app.run.history, lane, g, app.view.curve_positions);
    std::vector<Line> lines;
    const Line threshold{curves.threshold, "threshold", theme::colors().warm, 2.2f};
    const Line tau{curves.tau, "tau", theme::colors().faint, 1.2f};
    for (std::size_t c = 0; c < app.view.curve_positions.size(); ++c)
        lines.push_back({curves.scores[c], "", curve_color(c), 1.6f});
    const ScopedFont font(context.fonts.small);
    const float text_line = ImGui::GetFontSize();
    std::vector<float> picked;
    for (const Line& l : lines) picked.insert(picked.end(), l.values.begin(), l.values.end());
    const ScoreRange range = score_range(threshold.values, {picked});
    const auto positive = [](float v) { return v > 0; };
    const bool any = std::ranges::any_of(threshold.values, positive) || std::ranges::any_of(picked, positive);
    const ImVec2 origin = ImGui::GetCursorScreenPos();
    const ImVec2 room = ImGui::GetContentRegionAvail();
    const float left = context.px(44),
                legend = text_line * static_cast<float>((lines.size() + 3) / 2) + context.px(4);
    const ImVec2 min(origin.x + left, origin.y + context.px(4)),
        size(room.x - left - context.px(6), room.y - legend - text_line - context.px(10));
    ImDrawList& list = *ImGui::GetWindowDrawList();
    if (size.x < 30 || size.y < 30) return;
    list.AddRectFilled(min, {min.x + size.x, min.y + size.y}, theme::colors().inset, 3);
    if (!any) {
        WrappedText words;
        words.set(lines.empty() ? "Click a cell or a word to see its score and the eviction threshold."
                                : "no score recorded here",
                  size.x - context.px(16), drawn_width);
        list.AddText({min.x + context.px(8), min.y + context.px(8)}, theme::colors().dim,
                     words.shown().c_str());
    } else {
        const int first = steps.front()->row, last = std::max(steps.back()->row, first + 1);
        const auto x_of = [&](int r) {
            return min.x + size.x * static_cast<float>(r - first) / static_cast<float>(last - first);
        };
        // A margin keeps the ends of the axis visible. Values below the range run along the bottom.
        const auto y_of = [&](float v) { return min.y + size.y * (0.97f - 0.94f * range.part(v)); };
        const int most = std::max(2, static_cast<int>(size.y / (2 * text_line)));
        for (const auto& [tick, text] :
             labelled(log_ticks(double(range.low), double(range.high), std::min(most, 8)))) {
            const float y = y_of(static_cast<float>(tick));
            list.AddLine({min.x, y}, {min.x + size.x, y}, theme::colors().grid);
            list.AddText({min.x - ImGui::CalcTextSize(text.c_str()).x - context.px(4), y - text_line / 2},
                         theme::colors().dim, text.c_str());
        }
        const auto plot = [&](const Line& l, auto y) {
            for (std::size_t i = 0; i < n; ++i) {
                if (!(l.values[i] >= 0)) continue;
                const ImVec2 here(x_of(steps[i]->row), y(l.values[i]));
                const bool alone =
                    (i == 0 || !(l.values[i - 1] >= 0)) && (i + 1 == n || !(l.values[i + 1] >= 0));
                if (alone) list.AddCircleFilled(here, context.px(2.5f), l.color);
                if (i + 1 < n && l.values[i + 1] >= 0)
                    list.AddLine(here, {x_of(steps[i + 1]->row), y(l.values[i + 1])}, l.color, l.width);
            }
        };
        list.PushClipRect(min, {min.x + size.x, min.y + size.y}, true);
        float tau_low = 1e30f, tau_high = 0;
        for (float v : tau.values)
            if (v > 0) tau_low = std::min(tau_low, v), tau_high = std::max(tau_high, v);
        if (tau_high > tau_low)
            plot(tau, [&](float v) {
                return min.y + size.y - 2 - (size.y * 0.3f) * (v - tau_low) / (tau_high - tau_low);
            });
        plot(threshold, y_of);
        for (std::size_t c = 0; c < lines.size(); ++c) {
            plot(lines[c], y_of);
            const std::int32_t evicted = app.run.history.evicted_at(lane, g, app.view.curve_positions[c]);
            if (evicted < first || evicted > last) continue;
            const float value = lines[c].values[to_index(evicted - first)];
            if (!(value >= 0)) continue;
            const ImVec2 at(x_of(evicted), y_of(value));
            list.AddLine({at.x - 4, at.y - 4}, {at.x + 4, at.y + 4}, lines[c].color, 2);
            list.AddLine({at.x - 4, at.y + 4}, {at.x + 4, at.y - 4}, lines[c].color, 2);
        }
        finish_row_plot(list, min, size, x_of(app.view.row), first, steps.back()->row);
    }
    // Legend in two columns.
    const float top = min.y + size.y + text_line + context.px(5), column = (room.x - context.px(4)) / 2;
    std::size_t slot = 0;
    const auto entry = [&](ImU32 color, float width, const std::string& text) {
        const ImVec2 at(origin.x + column * static_cast<float>(slot % 2),
                        top + text_line * static_cast<float>(slot / 2));
        ++slot;
        list.AddLine({at.x, at.y + text_line / 2}, {at.x + context.px(14), at.y + text_line / 2}, color,
                     width);
        list.AddText({at.x + context.px(19), at.y}, theme::colors().dim,
                     fitted(text, column - context.px(22)).c_str());
    };
    entry(theme::colors().warm, 2.2f, "threshold");
    entry(theme::colors().faint, 1.2f,
          fmt::format("tau {}", number_text(double(tau.values[to_index(std::clamp(
                                    app.view.row - steps.front()->row, 0, static_cast<int>(n) - 1))]))));
    for (std::size_t c = 0; c < lines.size(); ++c) {
        const int p = app.view.curve_positions[c];
        const std::int32_t evicted = app.run.history.evicted_at(lane, g, p);
        entry(lines[c].color, 1.6f,
              fmt::format("{} “{}”{}", p, token_words(app, lane, p),
                          evicted >= 0 ? fmt::format(" × {}", evicted) : ""));
    }
}

}  // namespace keyhole
