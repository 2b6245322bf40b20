#include "app/panels/next_tokens.h"

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
            const LaneOnShow& shown = app.shown().at(i);
            const LaneRecord* record = shown.record.get();
            if (record == nullptr && k == 0)
                dim_text(context, shown.source == LaneOnShow::Source::own ? "not present" : "no step yet");
            if (record == nullptr || k >= record->top.size()) continue;
            const float p = std::exp(record->top[k].log_prob);
            const ImVec2 at = ImGui::GetCursorScreenPos();
            const float width = ImGui::GetContentRegionAvail().x, line = ImGui::GetFontSize();
            const float room = ImGui::CalcTextSize("100%").x + context.px(6);
            list.AddRectFilled({at.x - 2, at.y}, {at.x - 2 + (width - room) * p, at.y + line + 1},
                               theme::faded(lane_ink(context, i), 0.25f), 2);
            const std::string share = p >= 0.0995f ? fmt::format("{:.0f}%", double(p) * 100)
                                                   : fmt::format("{:.1f}%", double(p) * 100);
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

}  // namespace

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
        note_shown_lane(context, fmt::format("next {}", lane), lane);
        if (const LaneOnShow& shown = app.shown().at(lane); !shown.mark.empty()) {
            const ScopedFont font(context.fonts.small);
            colored_text(theme::colors().warm, fitted(shown.mark, ImGui::GetContentRegionAvail().x));
            tooltip(context, shown.note);
        }
    }
    draw_candidates(context, lanes);
    ImGui::EndTable();
}

}  // namespace keyhole
