#include "app/panels/heatmap_panel.h"

namespace keyhole {

void draw_heat_toolbar(const PanelContext& context) {
    AppState& app = context.app;
    ViewState& view = app.view;
    ImGui::AlignTextToFramePadding();
    const bool narrow = ImGui::GetContentRegionAvail().x < context.px(500);
    heading(context, narrow ? fmt::format("L{} · H{}", view.layer, view.head)
                            : fmt::format("Layer {} · head {}", view.layer, view.head));
    ImGui::SameLine(0, context.px(12));
    const auto mode = [&](const char* id, const char* label, HeatMode m) {
        command_button(context, id, label, view.mode == m);
        ImGui::SameLine(0, context.px(2));
    };
    mode("mode.attention", "Attention", HeatMode::attention);
    mode("mode.mask", "Mask", HeatMode::mask);
    mode("mode.score", "Score", HeatMode::score);
    ImGui::SameLine(0, context.px(12));
    if (view.mode != HeatMode::mask) {
        command_button(context, "range.log", "log", view.range().logarithmic);
        ImGui::SameLine(0, context.px(2));
        command_button(context, "range.sinks", "sinks", view.range().sinks_count);
        ImGui::SameLine(0, context.px(2));
        if (!narrow) {
            command_button(context, "mask.overlay", "hatch", view.mask_overlay);
            ImGui::SameLine(0, context.px(2));
        }
    }
    command_button(context, "view.fit", "fit", view.heat.fitted);
    if (app.desk.n_lanes() < 2) return;
    ImGui::SameLine(0, context.px(narrow ? 6 : 12));
    command_button(context, "diff", fmt::format("– {}", app.other_card()).c_str(),
                   view.difference && view.arrangement != Arrangement::compare);
    ImGui::SameLine(0, context.px(2));
    command_button(context, "blink", "blink", view.blink);
}

HeatPane focused_pane(const PanelContext& context) {
    AppState& app = context.app;
    const int card = app.view.lane, other = app.other_card();
    if (app.view.blink && other != card && !app.others.empty())
        return {other, -1, app.others.front(), context.painters.others.front()};
    if (app.view.difference && other != card)
        return {card, other, app.difference, context.painters.difference};
    return {card, -1, app.heat, context.painters.focus};
}

void draw_waiting(const PanelContext& context) {
    const EngineStatus& status = context.app.status;
    ImGui::Spacing();
    ImGui::TextUnformatted(status.phase == EnginePhase::failed ? "Nothing to show: the run did not start."
                                                               : "The prompt is being processed…");
    if (!status.message.empty()) ImGui::TextWrapped("%s", status.message.c_str());
}

void draw(HeatmapPanel& panel, const PanelContext& context) {
    draw_heat_toolbar(context);
    if (!context.app.has_run()) return draw_waiting(context);
    const HeatPane pane = focused_pane(context);
    const bool other = pane.versus >= 0 || pane.card != context.app.view.lane;
    if (other && ImGui::GetWindowWidth() > context.px(560)) {
        ImGui::SameLine(0, context.px(10));
        ImGui::PushStyleColor(ImGuiCol_Text, theme::lane_color(pane.card));
        ImGui::TextUnformatted(pane.versus >= 0
                                   ? fmt::format("lane {} – lane {}", pane.card, pane.versus).c_str()
                                   : fmt::format("lane {}", pane.card).c_str());
        ImGui::PopStyleColor();
    }
    draw_heat_pane(panel.pane, context, pane);
}

}  // namespace keyhole
