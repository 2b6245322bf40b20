#include "app/panels/heat_part.h"

#include "app/panels/heat_canvas.h"
#include "engine/base/index.h"

#include <algorithm>
#include <cmath>

namespace keyhole {

namespace {

constexpr float kRowLabel = 58, kColumnLabel = 56;  // unscaled pixels of the longest labels

/// Writes a label a row, left of the cells.
void draw_row_words(const PanelContext& context, const HeatPart& part, const HeatView& heat,
                    const HeatCanvas& canvas, float left) {
    ImDrawList& list = *ImGui::GetWindowDrawList();
    const float line = ImGui::GetFontSize();
    const int every = std::max(1, static_cast<int>(std::ceil(line / heat.cell_height)));
    for (std::size_t i = 0; i < part.rows.size(); i += to_index(every)) {
        const std::string text = fitted(visible(part.rows[i]), left - context.px(8));
        const float y = canvas.at(heat, 0, part.first_row + static_cast<double>(i) + 0.5).y - line / 2;
        list.AddText({canvas.min.x - context.px(6) - ImGui::CalcTextSize(text.c_str()).x, y},
                     theme::colors().text, text.c_str());
    }
}

/// Writes a word a column, upward, if the columns have room.
void draw_column_words(const PanelContext& context, const HeatPart& part, int lane, const HeatView& heat,
                       const HeatCanvas& canvas) {
    const AppState& app = context.app;
    const float line = ImGui::GetFontSize();
    if (heat.cell_width < double(line) - 1) return;
    for (int p = part.columns.first; p <= part.columns.last; ++p) {
        const bool watched = app.view.watched && app.view.watched->holds(p);
        const std::string text = fitted(visible(token_words(app, lane, p)), context.px(kColumnLabel) - 4);
        const float width = ImGui::CalcTextSize(text.c_str()).x, x = canvas.at(heat, p + 0.5, 0).x;
        text_upward(*ImGui::GetWindowDrawList(), {x - line / 2, canvas.max().y + context.px(7) + width},
                    watched ? theme::colors().warm : theme::colors().text, text.c_str());
    }
}

/// Picks the clicked cell, and says what is under the pointer.
void take_pointer_on_part(const PanelContext& context, const HeatPart& part, int lane, const HeatView& heat,
                          const HeatCanvas& canvas) {
    const ImVec2 mouse = ImGui::GetIO().MousePos;
    const CanvasPoint cell = heat.cell_at({double(mouse.x - canvas.min.x), double(mouse.y - canvas.min.y)});
    const Pick at{static_cast<int>(std::floor(cell.y)), static_cast<int>(std::floor(cell.x))};
    const bool on_cell = at.row <= context.app.run.last_row() && at.position <= at.row && at.position >= 0 &&
                         at.row < part.first_row + std::ssize(part.rows);
    if (!ImGui::IsItemHovered() || !on_cell) return;
    context.shared.next_hovered = at;
    show_tooltip(context, cell_caption(context.app, lane, at));
    if (ImGui::IsMouseClicked(1)) {
        pick(context, at, context.app.view.has_picked(at.position));
        context.shared.open_token_menu = true;
    }
}

}  // namespace

int columns_with_words(const PanelContext& context, float width) {
    return static_cast<int>((width - context.px(kRowLabel + 8)) / ImGui::GetFontSize());
}

void draw_heat_part(const PanelContext& context, const HeatPane& pane, const HeatPart& part, ImVec2 size) {
    const AppState& app = context.app;
    const int lane = app.need_drawn_lane(pane.lane);
    const ImVec2 origin = ImGui::GetCursorScreenPos();
    const float left = context.px(kRowLabel), below = context.px(kColumnLabel + 10);
    const int n_columns = part.columns.size(), n_rows = static_cast<int>(part.rows.size());
    HeatCanvas canvas;
    canvas.min = {std::round(origin.x + left), std::round(origin.y + context.px(3))};
    canvas.size = {std::floor(size.x - left - context.px(8)), std::floor(size.y - below)};
    if (canvas.size.x < 20 || canvas.size.y < 20 || n_columns < 1 || n_rows < 1) return;
    HeatView heat;
    heat.fitted = false;
    heat.left = part.columns.first;
    heat.top = part.first_row;
    heat.cell_width = double(canvas.size.x) / n_columns;
    heat.cell_height = double(canvas.size.y) / n_rows;
    ImDrawList& list = *ImGui::GetWindowDrawList();
    paint_heat(context, pane.painter, list, {heat_quad(context, pane, heat, canvas)});
    list.AddRect({canvas.min.x - 1, canvas.min.y - 1}, {canvas.max().x + 1, canvas.max().y + 1},
                 theme::colors().line);
    draw_row_words(context, part, heat, canvas, left);
    draw_column_words(context, part, lane, heat, canvas);
    draw_watched(context, heat, canvas);
    ImGui::SetCursorScreenPos(canvas.min);
    if (ImGui::InvisibleButton("cells", canvas.size)) {
        const ImVec2 mouse = ImGui::GetIO().MousePos;
        const CanvasPoint cell =
            heat.cell_at({double(mouse.x - canvas.min.x), double(mouse.y - canvas.min.y)});
        if (app.view.lane != pane.lane) run(context, fmt::format("lane.focus {}", pane.lane));
        if (const int row = static_cast<int>(cell.y); row <= app.run.last_row())
            pick(context, {row, static_cast<int>(cell.x)}, ImGui::GetIO().KeyShift);
    }
    mark_plot(context, fmt::format("story map {}", pane.lane));
    take_pointer_on_part(context, part, lane, heat, canvas);
    if (app.view.pick) draw_guides(heat, canvas, *app.view.pick, theme::colors().warm);
    if (context.shared.hovered) draw_guides(heat, canvas, *context.shared.hovered, theme::colors().text);
}

}  // namespace keyhole
