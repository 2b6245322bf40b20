#include "app/panels/heat_pane.h"

#include "app/panels/heat_canvas.h"
#include "app/panels/range_bar.h"
#include "engine/analysis/compare.h"
#include "engine/analysis/run_rows.h"
#include "engine/analysis/token_state.h"
#include "engine/base/index.h"
#include "engine/figure/both_color.h"
#include "engine/figure/ticks.h"

#include <algorithm>
#include <cmath>

namespace keyhole {

namespace {

/// Returns as much of a caption as fits. What a picture reduces is said in any case, in fewer words.
std::string caption_in_room(std::string_view text, float width) {
    constexpr std::string_view kReduced = "each pixel the ";
    const std::string_view part = fitting_clauses(text, width);
    if (part.find(kReduced) == text.find(kReduced)) return std::string(part);
    std::string_view reduced = text.substr(text.find(kReduced) + kReduced.size());
    return fitted(reduced.substr(0, reduced.find(", ")), width);
}

/// Draws index ticks and token texts of the rows on the left. left_margin: their room, whose right end is
/// x_end.
void draw_row_axis(const PanelContext& context, const HeatView& view, int lane, const HeatCanvas& canvas,
                   int n, float left_margin, float x_end, bool texts) {
    const AppState& app = context.app;
    ImDrawList& list = *ImGui::GetWindowDrawList();
    const float line = ImGui::GetFontSize();
    const int begin = std::clamp(static_cast<int>(std::floor(view.cell_at({0, 0}).y)), 0, n);
    const int end =
        std::clamp(static_cast<int>(std::ceil(view.cell_at({canvas.size.x, canvas.size.y}).y)), 0, n);
    const int gap = texts ? 1 : static_cast<int>(std::ceil(line * 1.6f / view.cell_height));
    list.PushClipRect({x_end - left_margin, canvas.min.y - line / 2}, {x_end, canvas.max().y + line / 2},
                      true);
    for (int row : index_ticks(begin, end - begin, gap)) {
        const float y = canvas.at(view, 0, row + 0.5).y;
        if (y < canvas.min.y || y > canvas.max().y || row >= end) continue;
        const std::string index = fmt::format("{}", row);
        const float width = ImGui::CalcTextSize(index.c_str()).x;
        if (width + context.px(5) > left_margin) continue;  // the pane beside has them
        list.AddText({x_end - width - context.px(5), y - line / 2}, theme::colors().dim, index.c_str());
        if (!texts) continue;
        const std::string text = fitted(token_words(app, lane, row), left_margin - width - context.px(16));
        const float text_width = ImGui::CalcTextSize(text.c_str()).x;
        list.AddText({x_end - width - context.px(11) - text_width, y - line / 2},
                     row == app.view.row ? theme::colors().text : theme::colors().faint, text.c_str());
    }
    list.PopClipRect();
}

/// Draws those of the positions below: turned texts if a cell is at least as wide as a text line.
void draw_position_axis(const PanelContext& context, const HeatView& view, int lane, const HeatCanvas& canvas,
                        int n, bool texts) {
    ImDrawList& list = *ImGui::GetWindowDrawList();
    const float line = ImGui::GetFontSize();
    const int begin = std::clamp(static_cast<int>(std::floor(view.cell_at({0, 0}).x)), 0, n);
    const int end =
        std::clamp(static_cast<int>(std::ceil(view.cell_at({canvas.size.x, canvas.size.y}).x)), 0, n);
    const float index_width = ImGui::CalcTextSize("00000").x;
    const int gap = std::max(1, static_cast<int>(std::ceil(index_width * 1.3f / view.cell_width)));
    list.PushClipRect({canvas.min.x, canvas.max().y}, {canvas.max().x, canvas.max().y + context.px(74)},
                      true);
    for (int p : index_ticks(begin, end - begin, gap)) {
        const float x = canvas.at(view, p + 0.5, 0).x;
        if (p >= end || x < canvas.min.x || x > canvas.max().x) continue;
        const std::string index = fmt::format("{}", p);
        const float width = ImGui::CalcTextSize(index.c_str()).x;
        list.AddText(
            {std::clamp(x - width / 2, canvas.min.x, canvas.max().x - width), canvas.max().y + context.px(3)},
            theme::colors().dim, index.c_str());
    }
    for (int p = begin; texts && p < end; ++p) {
        const float x = canvas.at(view, p + 0.5, 0).x;
        if (x < canvas.min.x || x > canvas.max().x) continue;
        const std::string text = fitted(token_words(context.app, lane, p), context.px(52));
        const float width = ImGui::CalcTextSize(text.c_str()).x;
        text_upward(list, {x - line / 2, canvas.max().y + context.px(5) + line + width},
                    theme::colors().faint, text.c_str());
    }
    list.PopClipRect();
}

/// Lists the meaning of colours beside the canvas, one item below the other.
class Legend {
  public:
    Legend(const PanelContext& context, const HeatCanvas& canvas)
        : context_(context), x_(canvas.max().x + context.px(8)), y_(canvas.min.y) {}
    void item(Rgb8 color, bool hatched, const std::string& text) {
        ImDrawList& list = *ImGui::GetWindowDrawList();
        const float box = context_.px(10);
        list.AddRectFilled({x_, y_}, {x_ + box, y_ + box}, theme::opaque(color));
        if (hatched)
            for (float d = 2; d < 2 * box; d += 4) {
                const float a = std::min(d, box), b = std::max(0.0f, d - box);
                list.AddLine({x_ + a, y_ + b}, {x_ + b, y_ + a},
                             theme::opaque(cell_colors(context_.app.view.background).hatch), 1.5f);
            }
        say(text);
    }
    void pin(const std::string& text) {
        const float box = context_.px(10);
        ImGui::GetWindowDrawList()->AddRectFilled({x_ + box / 2 - 1, y_}, {x_ + box / 2 + 1, y_ + box},
                                                  theme::colors().text);
        say(text);
    }

  private:
    const PanelContext& context_;
    float x_, y_;
    void say(const std::string& text) {
        const ImVec2 at(x_ + context_.px(14), y_ - context_.px(2));
        const float wrap = std::max(ImGui::GetWindowPos().x + ImGui::GetWindowWidth() - at.x, 1.0f);
        ImGui::GetWindowDrawList()->AddText(ImGui::GetFont(), ImGui::GetFontSize(), at, theme::colors().dim,
                                            text.c_str(), nullptr, wrap);
        const float high = ImGui::CalcTextSize(text.c_str(), nullptr, false, wrap).y;
        y_ += high + context_.px(18) - ImGui::GetFontSize();
    }
};

void draw_mask_legend(const PanelContext& context, const HeatCanvas& canvas) {
    Legend legend(context, canvas);
    legend.item(cell_colors(context.app.view.background).kept, false, "kept");
    legend.item(cell_colors(context.app.view.background).hidden, false, "hidden");
    legend.item(cell_colors(context.app.view.background).last_seen, false, "last seen");
    legend.item(cell_colors(context.app.view.background).evicted, true, "evicted");
    legend.pin("pinned");
}

/// Returns whether the picture has rows that were not recorded, or are not read yet.
bool lacks_rows(const AppState& app, const HeatData& data) {
    return data.focus().has_not_recorded() || data.focus_read().rows < app.run.history.n_positions();
}

/// Draws the colour bar, and below it what cells without a value mean.
void draw_scale_and_legend(RangeBar& bar, const PanelContext& context, const HeatPane& pane,
                           const ColorScale& scale, const HeatCanvas& canvas) {
    const bool differs = pane.versus >= 0, both = differs && context.app.view.mode == HeatMode::mask;
    const float legend = context.px(differs ? (both ? 46.0f : 28.0f) : 64.0f), least = context.px(110);
    const bool fits = canvas.size.y >= legend + least;
    const float height = fits ? std::min(canvas.size.y - legend, context.px(260)) : canvas.size.y;
    draw_range_bar(bar, context, pane.data.focus(), scale, {canvas.max().x + context.px(10), canvas.min.y},
                   height);
    if (!fits) return;
    HeatCanvas below = canvas;
    below.min.y += height + context.px(14);
    Legend list(context, below);
    const CellColors colors = cell_colors(context.app.view.background);
    if (!differs) list.item(color_of(scale, value_at(scale, 0.75f)), false, "attended");
    if (both) list.item(both_color(context.app.view.background), false, "both");
    list.item(colors.evicted, context.app.view.mask_overlay, differs ? "neither" : "evicted");
    if (!differs) list.item(colors.hidden, false, "hidden");
    if (lacks_rows(context.app, pane.data)) list.item(colors.missing, false, "not recorded");
}

/// Names the axes: rows are the steps whose query attends, columns the positions whose keys it attends to.
/// rows_x: left edge of the title of the rows; negative: rows have none.
void draw_axis_titles(const HeatCanvas& canvas, float rows_x, float columns_y) {
    ImDrawList& list = *ImGui::GetWindowDrawList();
    constexpr const char *kRows = "step (query)", *kColumns = "position (key)";
    const float wide = ImGui::CalcTextSize(kColumns).x, high = ImGui::CalcTextSize(kRows).x;
    if (wide <= canvas.size.x)
        list.AddText({canvas.min.x + (canvas.size.x - wide) / 2, columns_y}, theme::colors().dim, kColumns);
    if (rows_x >= 0 && high <= canvas.size.y)
        text_upward(list, {rows_x, canvas.min.y + (canvas.size.y + high) / 2}, theme::colors().dim, kRows);
}

/// Shows the cells of a box that was drawn with the right button. Returns false where it is too small.
bool zoom_to_box(HeatView& view, const HeatCanvas& canvas, ImVec2 a, ImVec2 b) {
    const float width = std::abs(b.x - a.x), height = std::abs(b.y - a.y);
    if (width <= 6 || height <= 6) return false;
    const CanvasPoint corner =
        view.cell_at({std::min<double>(b.x, a.x) - canvas.min.x, std::min<double>(b.y, a.y) - canvas.min.y});
    const double factor_x = canvas.size.x / width, factor_y = canvas.size.y / height;
    view.cell_width = std::clamp(view.cell_width * factor_x, HeatView::kMinCell, HeatView::kMaxCell);
    view.cell_height = std::clamp(view.cell_height * factor_y, HeatView::kMinCell, HeatView::kMaxCell);
    view.left = corner.x;
    view.top = corner.y;
    view.fitted = false;
    return true;
}

/// Zooms, pans and picks. shown: the zoom of this frame.
void handle_mouse(HeatPaneState& panel, const PanelContext& context, const HeatView& shown,
                  const HeatCanvas& canvas, int n) {
    HeatView view = shown;
    const ImGuiIO& io = ImGui::GetIO();
    const bool hovered = ImGui::IsItemHovered();
    const CanvasPoint mouse{double(io.MousePos.x - canvas.min.x), double(io.MousePos.y - canvas.min.y)};
    if (hovered && io.MouseWheel != 0 && !io.KeyCtrl) {
        const double step = io.KeyShift ? 1.6 : 1.2;
        view.zoom_at(mouse, std::pow(step, double(io.MouseWheel)));
        view.keep_in_sight(n, n, canvas.size.x, canvas.size.y);
    }
    if (hovered && ImGui::IsMouseDoubleClicked(0)) run(context, "view.fit");
    if (ImGui::IsItemActivated()) {
        panel.press = io.MousePos;
        panel.panning = false;
    }
    if (ImGui::IsItemActive() && ImGui::IsMouseDragging(0, 4)) {
        panel.panning = true;
        view.pan(io.MouseDelta.x, io.MouseDelta.y);
        view.keep_in_sight(n, n, canvas.size.x, canvas.size.y);
        ImGui::SetMouseCursor(ImGuiMouseCursor_ResizeAll);
    }
    if (hovered && ImGui::IsMouseClicked(1)) {
        panel.press = io.MousePos;
        panel.boxing = true;
    }
    bool asks_for_menu = false;
    if (panel.boxing && ImGui::IsMouseReleased(1)) {
        panel.boxing = false;
        asks_for_menu = !zoom_to_box(view, canvas, panel.press, io.MousePos);
    }
    if (panel.boxing && ImGui::IsMouseDragging(1, 4))
        ImGui::GetWindowDrawList()->AddRect(panel.press, io.MousePos, theme::colors().text);
    if (!(view == shown))
        run(context,
            fmt::format("view.region {} {} {} {}", view.left, view.top, view.cell_width, view.cell_height));

    const CanvasPoint cell = view.cell_at(mouse);
    const int row = static_cast<int>(std::floor(cell.y)), position = static_cast<int>(std::floor(cell.x));
    const bool on_cell = hovered && row >= 0 && row < n && position >= 0 && position <= row;
    if (asks_for_menu && on_cell) {
        pick(context, {row, position}, context.app.view.has_picked(position));
        context.shared.open_token_menu = true;
    }
    if (on_cell) context.shared.next_hovered = Pick{row, position};
    if (ImGui::IsItemDeactivated() && !panel.panning && on_cell) pick(context, {row, position}, io.KeyShift);
}

/// Draws a line over each token that is pinned in the focused head after the shown step, from the token's
/// own row on.
void draw_pins(const PanelContext& context, const HeatView& view, int lane, const HeatCanvas& canvas) {
    const AppState& app = context.app;
    const LaneRecord* record = app.record(lane);
    if (record == nullptr || record->pins == nullptr) return;
    ImDrawList& list = *ImGui::GetWindowDrawList();
    list.PushClipRect(canvas.min, canvas.max(), true);
    for (const Pin& pin : *record->pins) {
        if (pin.kv_head != app.focused_kv_head()) continue;
        const ImVec2 top = canvas.at(view, pin.position + 0.5, pin.position + 0.5),
                     bottom = canvas.at(view, pin.position + 0.5, app.view.row + 1);
        list.AddLine(top, bottom, theme::faded(theme::colors().text, 0.8f), 2);
        list.AddCircleFilled(top, context.px(3), theme::colors().text);
    }
    list.PopClipRect();
}

/// Says in the empty corner of a map without decoded steps what it shows, and what shows the eviction.
void say_that_it_is_the_prompt(const PanelContext& context, const HeatPane& pane, const HeatCanvas& canvas) {
    const AppState& app = context.app;
    const LaneRecord* record = app.record(pane.lane);
    if (!app.run.live() || app.run.n_decoded() > 0 || !app.view.heat.fitted || pane.versus >= 0 ||
        app.view.mode == HeatMode::score || record == nullptr ||
        record->info->policy.prefill == PrefillMode::stepwise)  // evicts while it reads the prompt
        return;
    const float left = canvas.min.x + canvas.size.x * 0.52f, wide = canvas.max().x - context.px(10) - left;
    if (wide < context.px(150) || canvas.size.y < context.px(260)) return;
    const int n_kv = app.layout(pane.lane).n_kv_heads();
    const double kept = double(record->use.stored_tokens) / n_kv;
    const int n = app.run.history.n_positions();
    std::string text = "The steps of the prompt: each attends to the tokens before it.\n\n";
    if (kept < n)
        text += fmt::format(
            "After the prompt this lane keeps {:.0f} of {} tokens. Space runs: the steps that "
            "follow do not see the evicted ones.",
            kept, n);
    else
        text += record->info->policy.evicts() ? "Nothing is evicted yet. Space runs."
                                              : fmt::format("This lane keeps all {} tokens.", n);
    ImGui::GetWindowDrawList()->AddText(ImGui::GetFont(), ImGui::GetFontSize(),
                                        {left, canvas.min.y + context.px(12)}, theme::colors().dim,
                                        text.c_str(), nullptr, wide);
}

/// Draws the legend of a difference of masks: one colour a lane.
void draw_difference_legend(const PanelContext& context, const HeatPane& pane, const HeatCanvas& canvas) {
    const ColorScale scale = difference_scale(context.app.view, 1, context.app.view.background);
    Legend legend(context, canvas);
    legend.item(color_of(scale, 1), false, fmt::format("only {}", pane.lane));
    legend.item(color_of(scale, -1), false, fmt::format("only {}", pane.versus));
    legend.item(color_of(scale, 0), false, "both");
    legend.item(cell_colors(context.app.view.background).evicted, true, "neither");
}

std::string difference_caption(const AppState& app, const HeatPane& pane, Pick cell) {
    const int a = app.need_drawn_lane(pane.lane), b = app.need_drawn_lane(pane.versus);
    std::vector<float> values(to_index(cell.row) + 1);
    std::string text =
        fmt::format("step {} reads “{}”  →  position {} “{}”", cell.row, token_words(app, a, cell.row),
                    cell.position, token_words(app, a, cell.position));
    const std::size_t p = to_index(cell.position);
    if (difference_values(app.run.history, a, b, cell.row, app.view.layer, app.view.head, HeatMode::mask,
                          values))
        text += std::isnan(values[p]) ? "   kept by neither"
                : values[p] == 0
                    ? "   kept by both"
                    : fmt::format("   kept only by lane {}", values[p] > 0 ? pane.lane : pane.versus);
    if (app.view.mode != HeatMode::mask && difference_values(app.run.history, a, b, cell.row, app.view.layer,
                                                             app.view.head, app.view.mode, values))
        text += fmt::format("   {} {} - {}: {}", mode_name(app.view.mode), pane.lane, pane.versus,
                            app.view.mode == HeatMode::attention && std::isfinite(values[p])
                                ? fmt::format("{:.3g}", double(values[p]))  // of two halves
                                : number_text(double(values[p])));
    return text;
}

/// Returns the zoom of this frame: a fitted one follows the matrix and the canvas, and a requested cell is
/// centred.
HeatView placed_heat(const AppState& app, int n, CanvasPoint canvas) {
    HeatView heat = app.view.heat;
    if (const std::optional<Pick>& centre = app.view.center_request)
        heat.center_on(centre->position, centre->row, canvas.x, canvas.y);
    if (heat.fitted) heat.fit(n, n, canvas.x, canvas.y, app.first_fitted_row());
    return heat;
}

/// Where the parts of a pane are.
struct PanePlace {
    ImVec2 origin, room;
    HeatCanvas canvas;
    float left = 0, below = 0;  // room of the canvas for texts
    float beside = 0;           // of the learned sink's column
    float title = 0;            // of an axis's title
    bool row_texts = false, texts = false;
};

/// Margins hold token texts if a cell is large enough for a line.
PanePlace place_of(const PanelContext& context, const HeatPane& pane, int n) {
    const AppState& app = context.app;
    const HeatView& heat = app.view.heat;
    const float line = ImGui::GetFontSize();
    PanePlace place;
    place.origin = ImGui::GetCursorScreenPos();
    const ImVec2 room = place.room = ImGui::GetContentRegionAvail();
    const float right = pane.scale ? heat_scale_width(context) : context.px(14),
                caption = line + context.px(6);
    // The test uses the smaller canvas.
    const float text_left = context.px(92), text_below = context.px(76);
    const int first_row = app.first_fitted_row();
    place.row_texts =
        pane.rows && pane.scale && room.x - text_left - right >= context.px(120) &&
        (heat.fitted ? (room.y - text_below - caption) / double(n - first_row) : heat.cell_height) >= line;
    place.texts = (heat.fitted ? (room.x - text_left - right) / double(n) : heat.cell_width) >= line;
    // Titles of the axes, where there is room for them.
    place.title = room.x >= context.px(260) && room.y >= context.px(180) ? line : 0;
    place.beside = sink_column_width(context, pane);
    place.left = place.beside + (place.row_texts ? text_left + place.title
                                 : pane.rows     ? context.px(40) + place.title
                                                 : context.px(6));
    place.below = (place.texts ? text_below : context.px(20)) + place.title;
    place.canvas.min = {std::round(place.origin.x + place.left), std::round(place.origin.y + context.px(4))};
    place.canvas.size = {std::floor(room.x - place.left - right), std::floor(room.y - place.below - caption)};
    return place;
}

void draw_axes_of(const PanelContext& context, const HeatPane& pane, const PanePlace& place,
                  const HeatView& heat, int lane, int n, const ColorScale& scale) {
    const HeatCanvas& canvas = place.canvas;
    const float left = (pane.rows ? place.left - place.title : place.left) - place.beside;
    draw_row_axis(context, heat, lane, canvas, n, left, canvas.min.x - place.beside, place.row_texts);
    draw_position_axis(context, heat, lane, canvas, n, place.texts);
    draw_sink_column(context, pane, heat, canvas, scale);
    if (place.title > 0)
        draw_axis_titles(canvas, pane.rows ? place.origin.x : -1,
                         canvas.max().y + place.below - ImGui::GetFontSize());
}

/// Marks the end of the prompt, and the shown row.
void mark_rows(const PanelContext& context, const HeatView& heat, const HeatCanvas& canvas) {
    const AppState& app = context.app;
    ImDrawList& list = *ImGui::GetWindowDrawList();
    list.PushClipRect(canvas.min, canvas.max(), true);
    const float prompt_y = canvas.at(heat, 0, app.run.history.n_prompt()).y;
    list.AddLine({canvas.min.x - context.px(4), std::round(prompt_y) - 0.5f},
                 {canvas.min.x + context.px(16), std::round(prompt_y) - 0.5f}, theme::colors().dim);
    list.PopClipRect();
    const float shown_y = canvas.at(heat, 0, app.view.row + 0.5).y;
    if (shown_y >= canvas.min.y && shown_y <= canvas.max().y)
        list.AddTriangleFilled({canvas.max().x + context.px(7), shown_y - context.px(4)},
                               {canvas.max().x + context.px(7), shown_y + context.px(4)},
                               {canvas.max().x + context.px(1), shown_y}, theme::colors().warm);
}

/// Draws one line under the axis: the cell under the pointer, else what the picture does not show.
void draw_caption(const PanelContext& context, const HeatPane& pane, const PanePlace& place, int lane,
                  const HeatQuad& quad) {
    const AppState& app = context.app;
    const ViewState& view = app.view;
    std::string text;
    bool lacks = false;  // steps that are not drawn are worth a bright line
    const std::optional<Pick> cell = context.shared.hovered ? context.shared.hovered : view.pick;
    if (cell && cell->row <= app.run.last_row() && cell->position <= cell->row) {
        text = pane.versus >= 0 ? difference_caption(app, pane, *cell) : cell_caption(app, lane, *cell);
    } else {
        text = recording_note(app.run.history, lane, app.run.stride, app.run.dense_from);
        lacks = !text.empty();
        const int side = std::max(pane.data.focus().factor(), 1 << std::max(quad.view.level(), 0));
        const auto add = [&](const std::string& words) {
            if (!words.empty()) text += (text.empty() ? "" : ", ") + words;
        };
        if (view.mode == HeatMode::score && app.run.history.n_prompt() > 1) add("prompt rows have no scores");
        add(reduction_note(view.mode, quad.difference, side));
        if (text.empty())
            text = "wheel zooms, drag pans, right-drag zooms to a box, double-click fits, click picks";
    }
    const float y = place.origin.y + place.room.y - ImGui::GetFontSize() - context.px(1);
    ImGui::GetWindowDrawList()->AddText({place.origin.x + context.px(4), y},
                                        cell || lacks ? theme::colors().text : theme::colors().dim,
                                        caption_in_room(text, place.room.x - context.px(8)).c_str());
}

}  // namespace

float heat_scale_width(const PanelContext& context) {
    return context.px(context.from_afar() ? 92 : 70);
}

void draw_heat_pane(HeatPaneState& panel, const PanelContext& context, const HeatPane& pane) {
    const AppState& app = context.app;
    const ViewState& view = app.view;
    const int lane = app.need_drawn_lane(pane.lane);
    const ScopedFont font(context.fonts.small);
    const int n = app.run.history.n_positions();
    const PanePlace place = place_of(context, pane, n);
    const HeatCanvas& canvas = place.canvas;
    if (canvas.size.x < 20 || canvas.size.y < 20) return;
    const HeatView heat = placed_heat(app, n, {canvas.size.x, canvas.size.y});
    context.shared.drawn_heat = {view.heat, heat, {canvas.size.x, canvas.size.y}};

    ImDrawList& list = *ImGui::GetWindowDrawList();
    const HeatQuad quad = heat_quad(context, pane, heat, canvas);
    paint_heat(context, pane.painter, list, {quad});
    list.AddRect({canvas.min.x - 1, canvas.min.y - 1}, {canvas.max().x + 1, canvas.max().y + 1},
                 theme::colors().line);
    draw_axes_of(context, pane, place, heat, lane, n, quad.scale);
    if (!pane.scale) {
        // The last pane of the line draws it.
    } else if (view.mode == HeatMode::mask)
        quad.difference ? draw_difference_legend(context, pane, canvas) : draw_mask_legend(context, canvas);
    else
        draw_scale_and_legend(panel.range, context, pane, quad.scale, canvas);
    draw_watched(context, heat, canvas);
    draw_pins(context, heat, pane.lane, canvas);
    say_that_it_is_the_prompt(context, pane, canvas);
    mark_rows(context, heat, canvas);

    ImGui::SetCursorScreenPos(canvas.min);
    ImGui::InvisibleButton("canvas", canvas.size);
    if (&pane.data == &app.maps.lane) mark_plot(context, "heatmap");
    handle_mouse(panel, context, heat, canvas, n);
    if (view.pick) draw_guides(heat, canvas, *view.pick, theme::colors().warm);
    if (context.shared.hovered) draw_guides(heat, canvas, *context.shared.hovered, theme::colors().text);
    draw_caption(context, pane, place, lane, quad);
}

}  // namespace keyhole
