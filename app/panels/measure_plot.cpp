#include "app/panels/measure_plot.h"

#include "app/panels/lane_curve.h"
#include "engine/analysis/curve_bins.h"
#include "engine/base/index.h"
#include "engine/figure/ticks.h"

#include <algorithm>
#include <cmath>

namespace keyhole {

namespace {

struct Axis {
    bool logarithmic = false;
    double low = 0, high = 1;
    double part(double value) const {
        if (logarithmic)
            return (std::log10(std::max(value, low)) - std::log10(low)) /
                   (std::log10(high) - std::log10(low));
        return (value - low) / (high - low);
    }
};

constexpr double kLowest = 1e-5;  // of a logarithmic axis

/// Fits the axis to the values of all lines. Returns false if there are none.
bool fit(std::span<const std::vector<float>> lines, Axis& axis) {
    std::vector<double> known;
    for (const std::vector<float>& values : lines)
        for (const float value : values)
            if (!std::isnan(value)) known.push_back(double(value));
    if (known.empty()) return false;
    const auto [least, most] = std::minmax_element(known.begin(), known.end());
    const double low = *least, high = *most;
    if (axis.logarithmic) {
        axis.high = std::pow(10.0, std::ceil(std::log10(std::max(high, 1e-3)) * 2) / 2);
        // A few values near zero, such as those of the first step, would take most of the room.
        const auto few = known.begin() + static_cast<std::ptrdiff_t>(known.size() / 50);
        std::nth_element(known.begin(), few, known.end());
        axis.low = std::clamp(std::pow(10.0, std::floor(std::log10(std::max(*few, kLowest)))), kLowest,
                              axis.high / 100);
    } else {
        const double margin = std::max((high - low) * 0.08, 0.005);
        axis.low = low - margin;
        axis.high = high + margin;
    }
    return true;
}

void draw_scale(const PanelContext& context, ImDrawList& list, const Axis& axis, ImVec2 min, ImVec2 size) {
    const float line = ImGui::GetFontSize();
    const int most = std::clamp(static_cast<int>(size.y / (2 * line)), 2, 8);
    const std::vector<double> ticks =
        axis.logarithmic ? log_ticks(axis.low, axis.high, most) : linear_ticks(axis.low, axis.high, most);
    for (const auto& [tick, text] : labelled(ticks)) {
        const float y = min.y + size.y * static_cast<float>(1 - axis.part(tick));
        if (y < min.y - 1 || y > min.y + size.y + 1) continue;
        list.AddLine({min.x, y}, {min.x + size.x, y}, theme::colors().grid);
        list.AddText({min.x - ImGui::CalcTextSize(text.c_str()).x - context.px(4), y - line / 2},
                     theme::colors().dim, text.c_str());
    }
}

struct LegendEntry {
    int lane = 0;
    std::string text;
};

/// Returns the lanes with their values at the shown step.
std::vector<LegendEntry> legend_entries(const AppState& app, int kind) {
    const std::size_t shown = to_index(std::max(0, app.view.row - app.run.first_row()));
    std::vector<LegendEntry> entries;
    for (int lane = 0; lane < app.run.lane_editor.n_lanes(); ++lane) {
        const auto known = app.run.history_lane(lane);
        if (!known) continue;
        const std::span<const float> values = app.run.curves.curve(kind, *known);
        const float value = shown < values.size() ? values[shown] : NAN;
        entries.push_back(
            {lane, fmt::format("{}  {}", app.shown().at(lane).title, number_text(double(value)))});
    }
    return entries;
}

/// Returns how many entries stand in a line: two, or one if a class is to read long names.
int legend_columns(const PanelContext& context, const std::vector<LegendEntry>& entries, float width) {
    if (!context.from_afar()) return 2;
    const float room = width / 2 - context.px(22);
    return std::all_of(entries.begin(), entries.end(),
                       [&](const LegendEntry& e) { return ImGui::CalcTextSize(e.text.c_str()).x <= room; })
               ? 2
               : 1;
}

void draw_legend(const PanelContext& context, ImDrawList& list, const std::vector<LegendEntry>& entries,
                 int n_columns, ImVec2 at, float width) {
    const float column = width / static_cast<float>(n_columns), line = ImGui::GetFontSize();
    int n = 0;
    for (const LegendEntry& entry : entries) {
        const ImVec2 place(at.x + column * static_cast<float>(n % n_columns),
                           at.y + line * static_cast<float>(n / n_columns));
        draw_lane_sample(context, list, entry.lane, {place.x, place.y + line * 0.55f}, context.px(16));
        list.AddText({place.x + context.px(19), place.y}, theme::colors().dim,
                     fitted(entry.text, column - context.px(22)).c_str());
        ++n;
    }
}

}  // namespace

std::string measure_tooltip(std::string_view name) {
    const Measure& m = measure(name);
    return fmt::format("{}\n{}\n{}   unit: {}", m.label, m.help, m.equation, m.unit);
}

std::optional<ImVec2> draw_row_lines(const PanelContext& context, std::span<const RowLine> lines,
                                     bool logarithmic, const char* nothing, ImVec2 room) {
    const AppState& app = context.app;
    const ScopedFont font(context.fonts.small);
    const float line = ImGui::GetFontSize(), left = context.px(context.from_afar() ? 56 : 46);
    const ImVec2 origin = ImGui::GetCursorScreenPos();
    const ImVec2 min(origin.x + left, origin.y + context.px(3)),
        size(room.x - left - kLineEndRoom * context.scale, room.y - line - context.px(12));
    ImDrawList& list = *ImGui::GetWindowDrawList();
    Axis axis;
    axis.logarithmic = logarithmic;
    if (size.x < 30 || size.y < 30) return std::nullopt;
    list.AddRectFilled(min, {min.x + size.x, min.y + size.y}, theme::colors().inset, 3);
    // Many lanes side by side are a band where each step has its own point.
    const float apart = context.px(lines.size() > 3 ? 6 : 4);
    const std::size_t n_steps = app.run.history.steps().size();
    const std::size_t per = values_a_bin(n_steps, static_cast<std::size_t>(size.x / apart));
    std::vector<std::vector<float>> means;
    for (const RowLine& line_of : lines)
        means.push_back(means_of_bins(line_of.values, per, logarithmic, kLowest));
    if (!fit(means, axis)) {
        list.AddText({min.x + context.px(8), min.y + context.px(8)}, theme::colors().dim, nothing);
        return std::nullopt;
    }
    draw_scale(context, list, axis, min, size);
    const StepList& steps = app.run.history.steps();
    const int first = steps.front()->row, last = std::max(steps.back()->row, first + 1);
    const auto x_of = [&](int r) {
        return min.x + size.x * static_cast<float>(r - first) / static_cast<float>(last - first);
    };
    const auto point = [&](std::size_t from, std::size_t to, float value) {  // of the steps from .. to - 1
        return ImVec2((x_of(steps[from]->row) + x_of(steps[to - 1]->row)) / 2,
                      min.y + size.y * static_cast<float>(1 - std::max(axis.part(double(value)), 0.0)));
    };
    std::vector<LineEnd> ends;
    list.PushClipRect(min, {min.x + size.x, min.y + size.y}, true);
    const auto draw_one = [&](const RowLine& row_line, const std::vector<float>& values) {
        const float width = row_line.in_focus ? 2.4f : lines.size() > 3 ? 1.2f : 1.4f;
        LaneCurve drawn = row_line.lane < 0 ? LaneCurve(list, theme::colors().text, width)
                                            : LaneCurve(context, list, row_line.lane, width);
        std::optional<ImVec2> end;
        for (std::size_t i = 0; i < values.size(); ++i) {
            if (std::isnan(values[i])) {
                drawn.lift();
                continue;
            }
            end = point(i * per, std::min((i + 1) * per, n_steps), values[i]);
            drawn.to(*end);
        }
        drawn.lift();
        if (end && row_line.lane >= 0) ends.push_back({row_line.lane, end->y});
    };
    // The lane in focus comes last, on top; behind it stand its own values where means are drawn.
    for (const bool focused : {false, true})
        for (std::size_t n = 0; n < lines.size(); ++n) {
            if (lines[n].in_focus != focused) continue;
            if (focused && per > 1 && lines[n].lane >= 0) {
                const float ink = std::clamp(1.2f / static_cast<float>(per), 0.1f, 0.3f);
                LaneCurve raw(list, theme::faded(lane_ink(context, lines[n].lane), ink), 1);
                for (std::size_t i = 0; i < lines[n].values.size(); ++i)
                    std::isnan(lines[n].values[i]) ? raw.lift() : raw.to(point(i, i + 1, lines[n].values[i]));
            }
            draw_one(lines[n], means[n]);
        }
    finish_row_plot(list, min, size, x_of(app.view.row), first, steps.back()->row);
    if (const std::string note = fmt::format("means of {} steps", per);
        per > 1 && ImGui::CalcTextSize(note.c_str()).x < size.x - context.px(150))
        list.AddText({min.x + (size.x - ImGui::CalcTextSize(note.c_str()).x) / 2, min.y + size.y + 2},
                     theme::colors().dim, note.c_str());
    label_line_ends(context, list, std::move(ends), {min.x + size.x + context.px(3), min.y}, size.y);
    ImGui::SetCursorScreenPos(min);
    ImGui::InvisibleButton("plot", size);
    return ImVec2(origin.x, min.y + size.y + line + context.px(6));
}

void draw_measure_plot(const PanelContext& context, int kind, ImVec2 room, bool legend) {
    const AppState& app = context.app;
    const CurveKind& about = curve_kinds()[to_index(kind)];
    std::vector<RowLine> lines;
    for (int lane = 0; lane < app.run.lane_editor.n_lanes(); ++lane)
        if (const auto known = app.run.history_lane(lane); known && !(lane == 0 && about.measure == "kl"))
            lines.push_back({app.run.curves.curve(kind, *known), lane, lane == app.view.lane});
    const ScopedFont font(context.fonts.small);
    const std::vector<LegendEntry> entries = legend ? legend_entries(app, kind) : std::vector<LegendEntry>();
    const int n_columns = legend_columns(context, entries, room.x);
    const int n_lines = legend ? (app.run.lane_editor.n_lanes() + n_columns - 1) / n_columns : 0;
    const float below = ImGui::GetFontSize() * static_cast<float>(n_lines);
    const ScopedId id(kind);
    const char* nothing =
        about.needs_shadow ? "starts with the next step of a lane with a shadow" : "nothing recorded yet";
    const auto end = draw_row_lines(context, lines, about.logarithmic, nothing, {room.x, room.y - below});
    if (end) tooltip(context, measure_tooltip(about.measure));
    if (!end || !legend) return;
    draw_legend(context, *ImGui::GetWindowDrawList(), entries, n_columns, *end, room.x);
}

}  // namespace keyhole
