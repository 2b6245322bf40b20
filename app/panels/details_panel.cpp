#include "app/panels/details_panel.h"

#include "app/panels/cell_view.h"
#include "app/panels/doctor_panel.h"
#include "app/panels/measure_plot.h"
#include "app/panels/next_tokens.h"
#include "app/panels/watched_plot.h"

#include <algorithm>
#include <utility>

namespace keyhole {

namespace {

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
        const LaneRecord* record = app.shown().at(i).record.get();
        if (record == nullptr) continue;
        const int n_kv = app.layout(i).n_kv_heads();
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
        draw_watched_plot(context);
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

void draw(DetailsPanel&, const PanelContext& context) {
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
