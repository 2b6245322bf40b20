#include "app/panels/atlas_panel.h"

#include "app/panels/scopes.h"
#include "app/view/atlas_colors.h"
#include "engine/analysis/run_rows.h"
#include "engine/base/index.h"
#include "engine/figure/heatmap.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace keyhole {

namespace {

/// Returns how many tokens a KV head keeps after the shown step.
int n_stored(const AppState& app, int lane, int kv_head) {
    int n = 0;
    for (int p = 0; p <= app.view.row; ++p)
        n += app.run.history.stored(lane, kv_head, p, app.view.row) ? 1 : 0;
    return n;
}

const AtlasColor& chosen_color(const AppState& app) {
    const AtlasColor* color = atlas_color(app.view.atlas_measure);
    return color == nullptr ? atlas_colors().front() : *color;
}

AtlasSource atlas_source(const AppState& app) {
    std::optional<int> other;
    if (const int lane = app.other_lane(); lane != app.view.lane) other = app.run.drawn_lane(lane);
    return {app.run.history, *app.shown_lane(), app.view.row, other, app.view.watched};
}

/// Computes the numbers of the heads, unless they are known for this state.
void update_values(AtlasPanel& panel, const AppState& app) {
    const AtlasColor& color = chosen_color(app);
    const AtlasSource of = atlas_source(app);
    const std::tuple now(app.run.history.generation(), of.lane, of.other.value_or(-1), of.row, color.code,
                         of.watched, app.run.last_row());
    if (panel.values_of == now) return;
    panel.values_of = now;
    panel.values = color.code == -1 ? std::vector<float>() : atlas_values(color, of);
}

/// Returns the end of the numbers' range.
float high_of(const AtlasPanel& panel, const AtlasColor& color) {
    if (color.high > 0) return color.high;
    float most = 0;
    for (const float value : panel.values)
        if (value > most) most = value;
    return most > 0 ? most : 1;
}

/// Draws a head's number: a colour from 0 (dark) to `high`, and the number if it fits.
void draw_number(const PanelContext& context, ImDrawList& list, float value, float high, ImVec2 min,
                 ImVec2 max) {
    if (std::isnan(value)) {
        list.AddRectFilled(min, max, theme::opaque(cell_colors(context.app.view.background).missing));
        return;
    }
    const float u = std::clamp(value / high, 0.0f, 1.0f);
    const Rgb8 c = colormap_table(context.app.view.colors)[static_cast<std::size_t>(u * 255)];
    list.AddRectFilled(min, max, theme::opaque(c));
    const std::string text = fmt::format("{:.2f}", double(value));
    const ImVec2 size = ImGui::CalcTextSize(text.c_str());
    if (size.x + 2 < max.x - min.x && size.y < max.y - min.y)
        list.AddText({(min.x + max.x - size.x) / 2, (min.y + max.y - size.y) / 2},
                     u > 0.6f ? theme::kOnBright : theme::kOnDark, text.c_str());
}

/// The cells of the atlas: squares, a row of them a layer. All heads fit into the width, unless the user
/// zooms. Layers that do not fit into the height are reached by scrolling.
struct AtlasGrid {
    float label = 0, line = 0;  ///< width of the layers' names; height of the heads' numbers
    float cell = 0, gap = 0;    ///< pitch of the squares; the room between two
    int n_layers = 0, n_heads = 0;
    bool wider = false;  ///< wider than the panel

    ImVec2 size() const {
        return {label + cell * static_cast<float>(n_heads), cell * static_cast<float>(n_layers)};
    }
    std::pair<ImVec2, ImVec2> square(ImVec2 origin, int layer, int head) const {
        const ImVec2 min(origin.x + label + cell * static_cast<float>(head),
                         origin.y + cell * static_cast<float>(layer));
        return {min, {min.x + cell - gap, min.y + cell - gap}};
    }
};

AtlasGrid grid_in_room(const PanelContext& context) {
    const ModelConfig& config = context.app.run.history.run().config;
    const ImVec2 room = ImGui::GetContentRegionAvail();
    AtlasGrid grid;
    grid.n_layers = config.n_layers, grid.n_heads = config.n_heads;
    grid.label = ImGui::CalcTextSize("L00").x + context.px(4);
    grid.line = ImGui::GetFontSize() + context.px(2);
    const auto fit = [&](float width) {
        grid.cell = std::floor((width - grid.label) / static_cast<float>(grid.n_heads));
    };
    fit(room.x);
    if (grid.size().y > room.y - grid.line) fit(room.x - ImGui::GetStyle().ScrollbarSize);
    grid.cell = std::floor(grid.cell * context.app.view.atlas_zoom);
    grid.wider = context.app.view.atlas_zoom > 1;
    grid.gap = std::clamp(std::floor(grid.cell / 20), 1.0f, context.px(4));
    return grid;
}

/// Scrolls so that a head's square is visible, and in the middle if it was not, by whole rows. anew: from the
/// first layer on, since the room has another size.
void scroll_to_focus(const AtlasGrid& grid, int layer, int head, bool anew) {
    const auto [min, max] = grid.square({0, 0}, layer, head);
    const ImVec2 room = ImGui::GetContentRegionAvail();
    float y = anew ? 0 : ImGui::GetScrollY();
    if (min.y < y || max.y > y + room.y) y = std::floor((min.y + max.y - room.y) / 2 / grid.cell) * grid.cell;
    ImGui::SetScrollY(std::max(y, 0.0f));
    if (min.x < ImGui::GetScrollX() || max.x > ImGui::GetScrollX() + room.x)
        ImGui::SetScrollX((min.x + max.x - room.x) / 2);
}

/// Returns the colours of the thumbnails: one scale for all, so that heads can be compared.
ColorScale atlas_scale(const AppState& app) {
    float largest = 0;
    for (const HeadMatrix& head : app.maps.lane.atlas()) {
        const float value = head.largest(app.view.attention_range.sinks_count);
        if (value > largest) largest = value;
    }
    ColorScale scale = attention_scale(largest > 0 ? largest : 1);
    scale.logarithmic = app.view.attention_range.logarithmic;
    if (!scale.logarithmic) scale.low = 0;
    scale.marks_nan = app.view.marks_nan;
    scale.marks_clips = app.view.marks_clips;
    return scale;
}

void draw_thumbnails(AtlasPanel& panel, const PanelContext& context, const AtlasGrid& grid, ImVec2 origin,
                     int first_layer, int last_layer) {
    const AppState& app = context.app;
    ImDrawList& list = *ImGui::GetWindowDrawList();
    const KvLayout& layout = app.layout(app.view.lane);
    const bool by_measure = app.view.atlas_measure != -1;
    const ColorScale scale = atlas_scale(app);
    const float high = high_of(panel, chosen_color(app));
    const float line = ImGui::GetFontSize();
    std::vector<HeatQuad> quads;
    for (int l = first_layer; l < last_layer; ++l) {
        const std::string text = fmt::format("L{}", l);
        const float top = grid.square(origin, l, 0).first.y;
        if (grid.cell > line || l % 5 == 0)
            list.AddText({origin.x, top + (grid.cell - grid.gap - line) / 2},
                         l == app.view.layer ? theme::colors().text : theme::colors().faint, text.c_str());
        for (int h = 0; h < grid.n_heads; ++h) {
            const auto [min, max] = grid.square(origin, l, h);
            HeatQuad quad;
            quad.background = app.view.background;
            quad.canvas = frame_rect(context, min, max);
            quad.view.fit(app.run.history.n_positions(), app.run.history.n_positions(), quad.canvas.width,
                          quad.canvas.height);
            panel.side = 1 << std::max(quad.view.level(), 0);
            quad.matrix = l * grid.n_heads + h;
            quad.kv_head = layout.kv_head_from_head(l, h);
            quad.mode = app.view.mode == HeatMode::mask ? HeatMode::mask : HeatMode::attention;
            quad.mask_overlay = app.view.mask_overlay;
            quad.scale = scale;
            quad.shown_row = app.view.row;
            if (by_measure)
                draw_number(context, list, panel.values[to_index(l * grid.n_heads + h)], high, min, max);
            else if (!app.maps.lane.atlas().empty())
                quads.push_back(quad);
        }
    }
    if (!quads.empty()) paint_heat(context, context.painters.focus, list, std::move(quads));
}

/// Underlines the heads that share a KV head.
void draw_groups(const PanelContext& context, const AtlasGrid& grid, ImVec2 origin, int first_layer,
                 int last_layer) {
    const int n_kv_heads = context.app.run.history.run().config.n_kv_heads;
    if (n_kv_heads >= grid.n_heads) return;
    ImDrawList& list = *ImGui::GetWindowDrawList();
    const int group = grid.n_heads / n_kv_heads;
    for (int l = first_layer; l < last_layer; ++l)
        for (int g = 0; g < n_kv_heads; ++g) {
            const ImVec2 min = grid.square(origin, l, g * group).first,
                         max = grid.square(origin, l, g * group + group - 1).second;
            list.AddLine({min.x, max.y + grid.gap / 2}, {max.x, max.y + grid.gap / 2}, theme::colors().dim,
                         std::max(1.0f, grid.gap / 2));
        }
}

/// Rings the heads that a step of a lesson is about.
void draw_rings_of_lesson(const PanelContext& context, const AtlasGrid& grid, ImVec2 origin) {
    const LessonState& lesson = context.app.lesson;
    if (!lesson.shown) return;
    const float out = context.px(2);
    for (const HeadPlace& place : lesson.at().look.heads) {
        if (place.layer >= grid.n_layers || place.head >= grid.n_heads) continue;  // of another model
        const auto [min, max] = grid.square(origin, place.layer, place.head);
        ImGui::GetWindowDrawList()->AddRect({min.x - out, min.y - out}, {max.x + out, max.y + out},
                                            theme::colors().warm, context.px(3), 0, context.px(3));
        mark_area(context, fmt::format("lesson.ring of L{}.H{}", place.layer, place.head), min, max);
    }
}

/// Frames the head under the pointer, and shows its facts. A click focuses it.
void point_at_head(const AtlasPanel& panel, const PanelContext& context, const AtlasGrid& grid,
                   ImVec2 origin) {
    const AppState& app = context.app;
    const ImVec2 mouse = ImGui::GetMousePos();
    const int h =
        std::clamp(static_cast<int>((mouse.x - origin.x - grid.label) / grid.cell), 0, grid.n_heads - 1);
    const int l = std::clamp(static_cast<int>((mouse.y - origin.y) / grid.cell), 0, grid.n_layers - 1);
    const auto [min, max] = grid.square(origin, l, h);
    ImGui::GetWindowDrawList()->AddRect({min.x - 1, min.y - 1}, {max.x + 1, max.y + 1}, theme::colors().text,
                                        2);
    const int lane = *app.shown_lane();
    const KvLayout& layout = app.run.history.layout(lane);
    const int g = layout.kv_head_from_head(l, h);
    const std::vector<HeadMatrix>& matrices = app.maps.lane.atlas();
    const std::string largest =
        matrices.empty() ? ""
                         : "\nlargest attention " +
                               half_text(double(matrices[to_index(l * grid.n_heads + h)].largest(true)));
    const std::string number =
        panel.values.empty() ? ""
                             : fmt::format("\n{}: {}", chosen_color(app).label,
                                           number_text(double(panel.values[to_index(l * grid.n_heads + h)])));
    tooltip(context,
            fmt::format("Layer {}, head {}\n{}: {} of {} tokens kept{}{}", l, h, kv_head_text(layout, g),
                        n_stored(app, lane, g), app.view.row + 1, largest, number));
    if (ImGui::IsMouseClicked(0)) run(context, fmt::format("goto {} {}", l, h));
}

void draw_grid(AtlasPanel& panel, const PanelContext& context, const AtlasGrid& grid) {
    const AppState& app = context.app;
    const ImGuiIO& io = ImGui::GetIO();
    if (ImGui::IsWindowHovered() && io.KeyAlt && io.MouseWheel != 0)
        run(context, fmt::format("atlas.zoom {:.3f}", app.view.atlas_zoom * std::pow(1.25f, io.MouseWheel)));
    const ImVec2 origin = ImGui::GetCursorScreenPos();
    const float top = ImGui::GetScrollY(), height = ImGui::GetContentRegionAvail().y;
    const int first_layer = std::clamp(static_cast<int>(top / grid.cell), 0, grid.n_layers),
              last_layer = std::clamp(static_cast<int>((top + height) / grid.cell) + 1, 0, grid.n_layers);
    draw_thumbnails(panel, context, grid, origin, first_layer, last_layer);
    draw_groups(context, grid, origin, first_layer, last_layer);
    const auto [min, max] = grid.square(origin, app.view.layer, app.view.head);
    ImGui::GetWindowDrawList()->AddRect({min.x - 1.5f, min.y - 1.5f}, {max.x + 1.5f, max.y + 1.5f},
                                        theme::colors().warm, 2, 0, 2);
    draw_rings_of_lesson(context, grid, origin);
    ImGui::SetCursorScreenPos({origin.x + grid.label, origin.y});
    ImGui::InvisibleButton("atlas", {grid.size().x - grid.label, grid.size().y});
    mark_plot(context, "atlas");
    if (ImGui::IsItemHovered()) point_at_head(panel, context, grid, origin);
}

/// Draws the list of what can colour the heads. What has no numbers is grey, and says what to do.
void draw_atlas_choice(const PanelContext& context) {
    const AppState& app = context.app;
    const AtlasColor& now = chosen_color(app);
    const AtlasSource of = atlas_source(app);
    const ScopedVar padding(ImGuiStyleVar_FramePadding, {context.px(6), context.px(1)});
    ImGui::SetNextItemWidth(ImGui::GetContentRegionAvail().x);
    ScopedCombo list("##atlas", std::string(now.label).c_str(), ImGuiComboFlags_HeightLarge);
    if (!list.open()) {
        mark_item(context, "atlas.color");
        return tooltip(context,
                       fmt::format("What colours the heads. {}\nShift+V takes the next one.", now.help));
    }
    bool lacks_shadow = false;
    for (const AtlasColor& color : atlas_colors()) {
        const std::string lacks = why_no_colors(color, of);
        lacks_shadow |= !lacks.empty() && color.needs == AtlasColor::Needs::shadow;
        {
            const ScopedDisabled disabled(!lacks.empty());
            if (list.item(std::string(color.label).c_str(), color.code == now.code) && lacks.empty())
                run(context, fmt::format("atlas.color {}", color.name));
        }
        mark_item(context, fmt::format("atlas.color {}", color.name));
        tooltip(context, fmt::format("{}{}{}", color.help, lacks.empty() ? "" : "\n\n", lacks));
    }
    if (!lacks_shadow || !app.run.live()) return;
    ImGui::Separator();
    if (list.item("Measure against full attention", false)) run(context, "shadow on");
    mark_item(context, "atlas.color shadow");
    tooltip(context, "Gives every lane a shadow that sees all tokens. Then the grey ones have numbers.");
}

/// Draws the range of the colours, and says of what they are.
void draw_atlas_legend(const AtlasPanel& panel, const PanelContext& context, int side) {
    const AppState& app = context.app;
    const AtlasColor& color = chosen_color(app);
    const ScopedFont font(context.fonts.small);
    const ModelConfig& config = app.run.history.run().config;
    if (color.code == -1 && app.view.mode == HeatMode::mask)
        return dim_text(context, atlas_note(app.view.mode, config.n_layers, config.n_heads, side));
    const ColorScale scale = atlas_scale(app);
    const std::string low = color.code == -1 ? number_text(double(scale.low)) : "0",
                      high = number_text(double(color.code == -1 ? scale.high : high_of(panel, color)));
    const float line = ImGui::GetFontSize(), width = context.px(64);
    colored_text(theme::colors().dim, low);
    ImGui::SameLine(0, context.px(4));
    const ImVec2 min = ImGui::GetCursorScreenPos();
    ImDrawList& list = *ImGui::GetWindowDrawList();
    const std::span<const Rgb8> map = colormap_table(app.view.colors);
    constexpr int kParts = 32;
    for (int i = 0; i < kParts; ++i)
        list.AddRectFilled({min.x + width * static_cast<float>(i) / kParts, min.y + line * 0.2f},
                           {min.x + width * static_cast<float>(i + 1) / kParts, min.y + line * 0.9f},
                           theme::opaque(map[to_index(i * 255 / (kParts - 1))]));
    ImGui::Dummy({width, line});
    mark_plot(context, "atlas legend");
    tooltip(context, atlas_note(app.view.mode, config.n_layers, config.n_heads, side));
    ImGui::SameLine(0, context.px(4));
    colored_text(theme::colors().dim, high);
    ImGui::SameLine(0, context.px(10));
    const std::string lacks = why_no_colors(color, atlas_source(app));
    if (lacks.empty())
        return colored_text(theme::colors().dim,
                            color.code == -1 ? "all steps" : fmt::format("step {}", app.view.row));
    ImGui::NewLine();
    small_words(context, lacks, theme::colors().warm);
}

}  // namespace

void draw(AtlasPanel& panel, const PanelContext& context) {
    const AppState& app = context.app;
    ImGui::AlignTextToFramePadding();
    heading(context, "Atlas");
    ImGui::SameLine();
    if (!app.run.has_steps()) {
        dim_text(context, "waits for the prompt");
        return;
    }
    if (!app.shown().at(app.view.lane).known) {
        ImGui::NewLine();
        (void)shows_lane(context, "atlas", app.view.lane);
        return;
    }
    note_shown_lane(context, "atlas", app.view.lane);
    const RunInfo& info = app.run.history.run();
    const int n_heads = info.config.n_heads;
    const int factor = app.maps.lane.atlas().empty() ? 1 : app.maps.lane.atlas().front().factor();
    update_values(panel, app);
    draw_atlas_choice(context);
    draw_atlas_legend(panel, context, std::max(factor, panel.side));
    const ScopedFont font(context.fonts.small);
    const AtlasGrid grid = grid_in_room(context);
    if (grid.cell < 3) return;
    const ImVec2 header = ImGui::GetCursorScreenPos();
    const float header_width = ImGui::GetContentRegionAvail().x;
    ImGui::SetCursorScreenPos({header.x, header.y + grid.line});
    float scrolled = 0;
    {
        const ScopedChild child("atlas grid", {}, false,
                                grid.wider ? ImGuiWindowFlags_HorizontalScrollbar : ImGuiWindowFlags_None);
        const std::tuple seen(app.view.layer, app.view.head, app.view.atlas_zoom);
        const bool other_head = std::exchange(panel.seen, seen) != seen;
        const std::pair room(grid.cell, ImGui::GetWindowHeight());
        const bool other_room = std::exchange(panel.room, room) != room;
        if (other_head || other_room)
            scroll_to_focus(grid, app.view.layer, app.view.head, other_room && !grid.wider);
        scrolled = ImGui::GetScrollX();
        draw_grid(panel, context, grid);
    }
    ImDrawList& list = *ImGui::GetWindowDrawList();
    const ScopedClip clip({header.x + grid.label, header.y}, {header.x + header_width, header.y + grid.line});
    for (int h = 0; h < n_heads; ++h) {
        const std::string text = fmt::format("{}", h);
        const float width = ImGui::CalcTextSize(text.c_str()).x;
        if (width + 2 < grid.cell)
            list.AddText(
                {header.x - scrolled + grid.label + grid.cell * (static_cast<float>(h) + 0.5f) - width / 2,
                 header.y},
                h == app.view.head ? theme::colors().text : theme::colors().faint, text.c_str());
    }
}

}  // namespace keyhole
