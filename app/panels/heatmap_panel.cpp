#include "app/panels/heatmap_panel.h"

namespace keyhole {

void draw_heat_toolbar(const PanelContext& context) {
    const AppState& app = context.app;
    const ViewState& view = app.view;
    ImGui::AlignTextToFramePadding();
    const bool narrow = ImGui::GetContentRegionAvail().x < context.px(570);
    heading(context, narrow ? fmt::format("L{} · H{}", view.layer, view.head)
                            : fmt::format("Layer {} · head {}", view.layer, view.head));
    const auto button = [&](const char* id, const std::string& label, bool lit, float gap) {
        next_to(label.c_str(), context.px(gap));
        action_button(context, id, label.c_str(), lit);
    };
    button("mode.attention", "Attention", view.mode == HeatMode::attention, 12);
    button("mode.mask", "Mask", view.mode == HeatMode::mask, 2);
    button("mode.score", "Score", view.mode == HeatMode::score, 2);
    const bool has_range = view.mode != HeatMode::mask;
    if (has_range) {
        button("range.log", "log", view.range().logarithmic, 12);
        button("range.sinks", narrow ? "sinks" : "range with sinks", view.range().sinks_count, 2);
        button("mask.overlay", narrow ? "evicted" : "mark evicted", view.mask_overlay, 2);
    }
    const bool decoded = app.first_fitted_row() > 0;
    button("view.fit", "all rows", view.heat.fitted && !decoded, has_range ? 2 : 12);
    button("view.decoded", "answer only", view.heat.fitted && decoded, 2);
    // Side by side, the difference and the other lane have their own panes.
    if (app.run.lane_editor.n_lanes() < 2 || view.arrangement == Arrangement::compare) return;
    const std::string minus = fmt::format("minus lane {}", app.other_lane());
    next_to((minus + "      blink").c_str(), context.px(narrow ? 6 : 12));  // both in one line
    action_button(context, "diff", minus.c_str(), view.difference);
    button("blink", "blink", view.blink, 2);
}

HeatPane focused_pane(const PanelContext& context) {
    const AppState& app = context.app;
    const int lane = app.view.lane, other = app.other_lane();
    if (app.view.blink && other != lane && !app.maps.others.empty())
        return {other, -1, app.maps.others.front(), context.painters.others.front()};
    if (app.view.difference && other != lane)
        return {lane, other, app.maps.difference, context.painters.difference};
    return {lane, -1, app.maps.lane, context.painters.focus};
}

void draw_waiting(const PanelContext& context) {
    const EngineStatus& status = context.app.run.status;
    ImGui::Spacing();
    ImGui::TextUnformatted(status.phase == EnginePhase::failed ? "Nothing to show: the run did not start."
                                                               : "The prompt is being read.");
    if (!status.message.empty()) ImGui::TextWrapped("%s", status.message.c_str());
}

void draw(HeatmapPanel& panel, const PanelContext& context) {
    draw_heat_toolbar(context);
    if (!context.app.run.has_steps()) return draw_waiting(context);
    const HeatPane pane = focused_pane(context);
    const bool other = pane.versus >= 0 || pane.lane != context.app.view.lane;
    if (other) {
        const std::string title = pane.versus >= 0
                                      ? fmt::format("lane {} minus lane {}", pane.lane, pane.versus)
                                      : fmt::format("lane {}", pane.lane);
        next_to(title.c_str(), context.px(10));
        colored_text(lane_ink(context, pane.lane), title);
    }
    draw_lane_mark(context, pane.lane);
    if (pane.versus >= 0) draw_lane_mark(context, pane.versus);
    if (!shows_lane(context, "heatmap", pane.lane)) return;
    if (pane.versus >= 0 && !shows_lane(context, "heatmap minus", pane.versus)) return;
    draw_heat_pane(panel.pane, context, pane);
}

}  // namespace keyhole
