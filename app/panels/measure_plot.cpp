#include "app/panels/measure_plot.h"

#include "app/panels/lane_line.h"
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

/// Fits the axis to the values of all lines. Returns false if there are none.
bool fit(std::span<const RowLine> lines, Axis& axis) {
    double low = 1e300, high = -1e300;
    for (const RowLine& row_line : lines)
        for (const float value : row_line.values)
            if (!std::isnan(value)) low = std::min(low, double(value)), high = std::max(high, double(value));
    if (high < low) return false;
    if (axis.logarithmic) {
        axis.low = 1e-5;
        axis.high = std::pow(10.0, std::ceil(std::log10(std::max(high, 1e-3)) * 2) / 2);
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
            {lane, fmt::format("{}  {}", app.run.lane_editor.title(lane), number_text(double(value)))});
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
    if (!fit(lines, axis)) {
        list.AddText({min.x + context.px(8), min.y + context.px(8)}, theme::colors().dim, nothing);
        return std::nullopt;
    }
    draw_scale(context, list, axis, min, size);
    const StepList& steps = app.run.history.steps();
    const int first = steps.front()->row, last = std::max(steps.back()->row, first + 1);
    const auto x_of = [&](int r) {
        return min.x + size.x * static_cast<float>(r - first) / static_cast<float>(last - first);
    };
    std::vector<LineEnd> ends;
    list.PushClipRect(min, {min.x + size.x, min.y + size.y}, true);
    for (const RowLine& row_line : lines) {
        const std::span<const float> values = row_line.values;
        const float width = row_line.in_focus ? 2.2f : 1.4f;
        LaneLine drawn = row_line.lane < 0 ? LaneLine(list, theme::colors().text, width)
                                           : LaneLine(context, list, row_line.lane, width);
        std::optional<ImVec2> end;
        for (std::size_t i = 0; i < values.size(); ++i) {
            if (std::isnan(values[i])) {
                drawn.lift();
                continue;
            }
            end = ImVec2(x_of(steps[i]->row),
                         min.y + size.y * static_cast<float>(1 - axis.part(double(values[i]))));
            drawn.to(*end);
        }
        drawn.lift();
        if (end && row_line.lane >= 0) ends.push_back({row_line.lane, end->y});
    }
    finish_row_plot(list, min, size, x_of(app.view.row), first, steps.back()->row);
    label_line_ends(list, std::move(ends), {min.x + size.x + context.px(3), min.y}, size.y);
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
