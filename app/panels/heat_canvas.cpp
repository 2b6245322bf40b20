#include "app/panels/heat_canvas.h"

#include "engine/analysis/run_rows.h"
#include "engine/analysis/token_state.h"
#include "engine/base/index.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace keyhole {

namespace {

/// Returns the upper end of the automatic colour range. Equal colours must mean equal values, so lanes side
/// by side share one range, and a lane shown by blinking uses the range of the focused lane.
float largest_in(const AppState& app, const HeatPane& pane) {
    const bool sinks = app.view.range().sinks_count;
    if (pane.versus >= 0) return pane.data.focus().largest(sinks);
    float largest = app.maps.lane.focus().largest(sinks);
    if (app.view.arrangement == Arrangement::compare || app.tells_story())
        for (const HeatData& other : app.maps.others)
            largest = std::max(largest, other.focus().largest(sinks));
    return largest;
}

}  // namespace

HeatQuad heat_quad(const PanelContext& context, const HeatPane& pane, const HeatView& heat,
                   const HeatCanvas& canvas) {
    const AppState& app = context.app;
    const ViewState& view = app.view;
    HeatQuad quad;
    quad.canvas = frame_rect(context, canvas.min, canvas.max());
    quad.view = heat;
    quad.view.cell_width *= context.frame_scale.x;
    quad.view.cell_height *= context.frame_scale.y;
    quad.kv_head = app.layout(pane.lane).kv_head_from_head(view.layer, view.head);
    quad.mode = view.mode;
    quad.mask_overlay = view.mask_overlay;
    quad.difference = pane.versus >= 0;
    const float largest = largest_in(app, pane);
    quad.scale =
        quad.difference ? difference_scale(view, largest, view.background) : color_scale(view, largest);
    quad.shown_row = view.row;
    quad.background = view.background;
    if (&pane.data == &app.maps.lane) {
        context.shared.heat_canvas = quad.canvas;
        context.shared.heat_view = quad.view;
        context.shared.heat_scale = quad.scale;
    }
    return quad;
}

void draw_guides(const HeatView& view, const HeatCanvas& canvas, Pick cell, ImU32 color) {
    ImDrawList& list = *ImGui::GetWindowDrawList();
    const ImVec2 a = canvas.at(view, cell.position, cell.row),
                 b = canvas.at(view, cell.position + 1, cell.row + 1);
    const ImU32 thin = theme::faded(color, 0.45f);
    const float x = (a.x + b.x) / 2, y = (a.y + b.y) / 2;
    list.PushClipRect(canvas.min, canvas.max(), true);
    list.AddLine({canvas.min.x, y}, {std::min(a.x, b.x) - 2, y}, thin);
    list.AddLine({b.x + 2, y}, {canvas.max().x, y}, theme::faded(color, 0.2f));
    list.AddLine({x, b.y + 2}, {x, canvas.max().y}, thin);
    list.AddLine({x, canvas.min.y}, {x, a.y - 2}, theme::faded(color, 0.2f));
    const float grow = std::max(2.0f, 3 - (b.x - a.x) / 2);
    list.AddRect({a.x - grow, a.y - grow}, {b.x + grow, b.y + grow}, color, 1, 0, 1.5f);
    list.PopClipRect();
}

void draw_watched(const PanelContext& context, const HeatView& view, const HeatCanvas& canvas) {
    const std::optional<TokenSpan>& watched = context.app.view.watched;
    if (!watched) return;
    const float y = canvas.max().y + 1, left = canvas.at(view, watched->first, 0).x;
    const float right = std::max(canvas.at(view, watched->last + 1, 0).x, left + context.px(3));
    const float from = std::max(left, canvas.min.x), to = std::min(right, canvas.max().x);
    if (from < to)
        ImGui::GetWindowDrawList()->AddRectFilled({from, y}, {to, y + context.px(4)}, theme::colors().warm);
}

float sink_column_width(const PanelContext& context, const HeatPane& pane) {
    return pane.data.learned_sink().empty() ? 0 : context.px(10);
}

void draw_sink_column(const PanelContext& context, const HeatPane& pane, const HeatView& view,
                      const HeatCanvas& canvas, const ColorScale& scale) {
    const std::vector<float>& share = pane.data.learned_sink();
    if (share.empty()) return;
    ImDrawList& list = *ImGui::GetWindowDrawList();
    const float right = canvas.min.x - context.px(2), left = right - context.px(7);
    const auto row_at = [&](float y) {
        return static_cast<int>(std::floor(view.cell_at({0, double(y - canvas.min.y)}).y));
    };
    const int n = static_cast<int>(share.size());
    // One line of pixels, or one row where rows are higher: the largest share of the rows in it.
    for (float y = canvas.min.y; y < canvas.max().y;) {
        const int row = row_at(y);
        const float next = std::min(std::max(canvas.at(view, 0, row + 1).y, y + 1), canvas.max().y);
        float most = -1;
        for (int r = std::max(row, 0); r < std::min(std::max(row_at(next - 0.5f), row) + 1, n); ++r)
            if (share[to_index(r)] > most) most = share[to_index(r)];
        if (most >= 0) list.AddRectFilled({left, y}, {right, next}, theme::opaque(color_of(scale, most)));
        y = next;
    }
    list.AddRect({left - 1, canvas.min.y - 1}, {right + 1, canvas.max().y + 1}, theme::colors().line);
    constexpr const char* kName = "sink";
    list.AddText({right - ImGui::CalcTextSize(kName).x, canvas.max().y + context.px(3)}, theme::colors().dim,
                 kName);
    mark_area(context, "sink column", {left, canvas.min.y}, {right, canvas.max().y});
    if (!ImGui::IsWindowHovered() ||
        !ImGui::IsMouseHoveringRect({left, canvas.min.y}, {right, canvas.max().y}))
        return;
    const int row = row_at(ImGui::GetIO().MousePos.y);
    if (row >= 0 && row < n && share[to_index(row)] >= 0)
        ImGui::SetTooltip("step %d: the learned sink takes %.3f\nsink, no token: neither kept nor lost", row,
                          double(share[to_index(row)]));
}

std::string cell_caption(const AppState& app, int lane, Pick cell) {
    const int g = app.run.history.layout(lane).kv_head_from_head(app.view.layer, app.view.head);
    std::vector<float> values(to_index(cell.row) + 1);
    std::string text =
        fmt::format("step {} reads “{}”  →  position {} “{}”", cell.row, token_words(app, lane, cell.row),
                    cell.position, token_words(app, lane, cell.position));
    const std::size_t p = to_index(cell.position);
    if (app.view.mode != HeatMode::mask && !is_recorded(app.run.history, lane, cell.row))
        return text + "   not recorded: the lane has no record of this step";
    const TokenPresence is = presence(app.run.history, lane, g, cell.position, cell.row);
    if (is == TokenPresence::hidden)
        return text + "   " + presence_text(app.run.history, lane, g, cell.position, cell.row);
    if (is == TokenPresence::evicted)
        return text +
               fmt::format("   evicted after step {}", app.run.history.evicted_at(lane, g, cell.position));
    if (attention_values(app.run.history, lane, cell.row, app.view.layer, app.view.head, values))
        text += fmt::format("   p = {}", std::isfinite(values[p]) ? half_text(double(values[p])) : "NaN");
    if (score_values(app.run.history, lane, cell.row, g, values))
        text += fmt::format("   score {}", std::isfinite(values[p]) ? number_text(double(values[p])) : "NaN");
    else if (app.view.mode == HeatMode::score && cell.row < app.run.history.n_prompt() - 1)
        text += "   prompt rows have no scores";
    return text;
}

}  // namespace keyhole
