#include "app/panels/inspector_panel.h"

#include "app/panels/cell_view.h"
#include "app/panels/doctor_panel.h"
#include "app/panels/measure_plot.h"
#include "app/panels/span_plot.h"
#include "engine/base/index.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace keyhole {

namespace {

/// Returns the lanes that have room side by side: lane 0, and those around the focused one.
std::vector<int> lanes_side_by_side(const PanelContext& context) {
    const AppState& app = context.app;
    const ScopedFont font(app.for_projector() ? context.fonts.book : context.fonts.small);
    const float column = 5.2f * ImGui::GetFontSize();  // a word and its share
    const int most = std::clamp(static_cast<int>(ImGui::GetContentRegionAvail().x / column), 2, 4);
    const int n_lanes = app.run.lane_editor.n_lanes(), n = std::min(n_lanes, most);
    std::vector<int> lanes;
    const int first = std::clamp(app.view.lane - (n - 1) / 2, 1, std::max(1, n_lanes - n + 1));
    if (n > 0) lanes.push_back(0);
    for (int lane = first; lane < first + n - 1; ++lane) lanes.push_back(lane);
    return lanes;
}

/// Draws the most likely tokens of the lanes, a line a rank.
void draw_candidates(const PanelContext& context, const std::vector<int>& lanes) {
    const AppState& app = context.app;
    const bool teaches = app.for_projector();  // few and large
    const ScopedFont font(teaches ? context.fonts.book : context.fonts.small);
    ImDrawList& list = *ImGui::GetWindowDrawList();
    for (std::size_t k = 0; k < (teaches ? 5u : 10u); ++k) {
        ImGui::TableNextRow();
        for (const int i : lanes) {
            ImGui::TableNextColumn();
            const LaneRecord* record = app.record(i);
            if (record == nullptr || k >= record->top.size()) continue;
            const float p = std::exp(record->top[k].log_prob);
            const ImVec2 at = ImGui::GetCursorScreenPos();
            const float width = ImGui::GetContentRegionAvail().x, line = ImGui::GetFontSize();
            list.AddRectFilled({at.x - 2, at.y}, {at.x - 2 + (width - context.px(26)) * p, at.y + line + 1},
                               theme::faded(theme::lane_color(i), 0.25f), 2);
            const std::string share = p >= 0.0995f ? fmt::format("{:.0f}%", double(p) * 100)
                                                   : fmt::format("{:.1f}", double(p) * 100);
            const float share_width = ImGui::CalcTextSize(share.c_str()).x;
            const std::string text = visible(token_words(app, record->top[k].id));
            ImGui::TextUnformatted(fitted(text, width - share_width - context.px(4)).c_str());
            mark_item(context, fmt::format("candidate {} {}", i, k + 1));
            if (app.run.live()) {
                const ImVec2 end(at.x + width, at.y + line + 1);
                if (ImGui::IsWindowHovered() && ImGui::IsMouseHoveringRect(at, end)) {
                    list.AddRect({at.x - 2, at.y}, end, theme::colors().text, 2);
                    ImGui::SetTooltip(
                        "%s: %.2f %%, log-probability %.2f\nClick: step %d consumes it, in all lanes",
                        text.c_str(), double(p) * 100, double(record->top[k].log_prob), app.view.row + 1);
                    if (ImGui::IsMouseClicked(0)) {
                        run(context, fmt::format("lane.focus {}", i));
                        run(context, fmt::format("candidate {}", k + 1));
                    }
                }
            }
            list.AddText({at.x + width - share_width, at.y}, theme::colors().dim, share.c_str());
        }
    }
}

/// Draws the lane's number and name, cut where the column ends.
void draw_lane_title(const PanelContext& context, int lane) {
    const std::string title = context.app.run.lane_editor.title(lane);
    const std::string cut = fitted(title, ImGui::GetContentRegionAvail().x);
    colored_text(theme::lane_color(lane), cut);
    if (cut != title) tooltip(context, title);
}

void draw_next_tokens(const PanelContext& context) {
    const AppState& app = context.app;
    const std::vector<int> lanes = lanes_side_by_side(context);
    heading(context, "Next token");
    ImGui::SameLine();
    const std::size_t n_lanes = to_index(app.run.lane_editor.n_lanes());
    dim_text(
        context,
        fmt::format("after step {}{}", app.view.row,
                    lanes.size() < n_lanes ? fmt::format(", {} of {} lanes", lanes.size(), n_lanes) : ""));
    if (lanes.size() < n_lanes) tooltip(context, "Lane 0 and those around the focused lane.");
    if (lanes.empty() ||
        !ImGui::BeginTable("next", static_cast<int>(lanes.size()),
                           ImGuiTableFlags_SizingStretchSame | ImGuiTableFlags_BordersInnerV))
        return;
    ImGui::TableNextRow();
    for (const int lane : lanes) {
        ImGui::TableNextColumn();
        draw_lane_title(context, lane);
    }
    draw_candidates(context, lanes);
    ImGui::EndTable();
}

void draw_memory_rows(const PanelContext& context) {
    const AppState& app = context.app;
    const ScopedFont font(context.fonts.small);
    ImGui::TableNextRow();
    for (const auto& [title, whole] :
         {std::pair("", ""),
          {"tokens", "tokens of a KV head: stored after the step / attended to in it"},
          {"stored", "bytes of the stored tokens"},
          {"allocated", "bytes allocated from the system"}}) {
        ImGui::TableNextColumn();
        dim_text(context, title);
        if (*whole != '\0') tooltip(context, whole);
    }
    for (int i = 0; i < app.run.lane_editor.n_lanes(); ++i) {
        const LaneRecord* record = app.record(i);
        if (record == nullptr) continue;
        const int n_kv = app.run.history.layout(app.run.history_lane(i).value_or(0)).n_kv_heads();
        ImGui::TableNextRow();
        ImGui::TableNextColumn();
        draw_lane_title(context, i);
        ImGui::TableNextColumn();
        ImGui::TextUnformatted(fmt::format("{:.0f} / {:.0f}", double(record->use.stored_tokens) / n_kv,
                                           double(record->attended_tokens) / n_kv)
                                   .c_str());
        tooltip(context,
                fmt::format("stored after the step / attended to in it, mean over KV heads\n{} / {} in total",
                            record->use.stored_tokens, record->attended_tokens));
        ImGui::TableNextColumn();
        ImGui::TextUnformatted(bytes_text(record->use.stored_bytes).c_str());
        ImGui::TableNextColumn();
        ImGui::TextUnformatted(bytes_text(record->use.allocated_bytes).c_str());
        tooltip(context, "allocated from the system, scores included");
    }
}

void draw_memory(const PanelContext& context) {
    heading(context, "Memory");
    ImGui::SameLine();
    dim_text(context, "K and V, all layers");
    if (!ImGui::BeginTable("memory", 4, ImGuiTableFlags_SizingStretchProp)) return;
    for (const float part : {1.2f, 1.0f, 1.0f, 1.0f})
        ImGui::TableSetupColumn("", ImGuiTableColumnFlags_WidthStretch, part);
    draw_memory_rows(context);
    ImGui::EndTable();
}

/// Plots the retained share of the watched words for a projector, unless the curves' pane does.
void draw_watched_curve(const PanelContext& context) {
    const ViewState& view = context.app.view;
    if (!context.app.for_projector() || !view.watched) return;
    if (context.shared.curves_below && view.measure_curve == ViewState::kWatchedSpan) return;
    heading(context, "Watched words");
    {
        const ScopedChild child("watched", {0, context.px(150)}, false, ImGuiWindowFlags_NoScrollbar);
        draw_span_plot(context);
    }
    ImGui::Dummy({0, context.px(6)});
}

/// Plots the KL divergence of every lane from lane 0 over the steps, in the remaining room.
void draw_divergence(const PanelContext& context) {
    if (context.app.run.lane_editor.n_lanes() < 2 || ImGui::GetContentRegionAvail().y < context.px(84))
        return;
    heading(context, "Divergence");
    tooltip(context, measure_tooltip("kl"));
    ImGui::SameLine();
    dim_text(context, "KL to lane 0, nats");
    const ImVec2 room = ImGui::GetContentRegionAvail();
    draw_measure_plot(context, curve_index("kl"), {room.x, std::min(room.y, context.px(250))}, false);
}

}  // namespace

void draw(InspectorPanel&, const PanelContext& context) {
    if (!context.app.run.has_steps()) return;
    draw_doctor_line(context);
    ImGui::Dummy({0, context.px(3)});
    draw_next_tokens(context);
    ImGui::Dummy({0, context.px(6)});
    draw_watched_curve(context);
    {
        // A fixed height, so that nothing below moves with the pointer.
        const ScopedChild cell("cell view", {0, ImGui::GetTextLineHeightWithSpacing() * 14.5f}, false,
                               ImGuiWindowFlags_NoScrollbar | ImGuiWindowFlags_NoScrollWithMouse);
        draw_cell_view(context);
    }
    if (!context.app.for_projector()) {
        draw_memory(context);
        ImGui::Dummy({0, context.px(6)});
    }
    draw_divergence(context);
}

}  // namespace keyhole
