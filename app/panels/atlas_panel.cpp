#include "app/panels/atlas_panel.h"

#include "app/panels/measure_plot.h"
#include "engine/analysis/run_rows.h"
#include "engine/analysis/watched_span.h"
#include "engine/base/index.h"
#include "engine/figure/heatmap.h"

#include <algorithm>
#include <cmath>

namespace keyhole {

namespace {

/// Returns how many tokens a KV head keeps after the shown step.
int n_stored(const AppState& app, int lane, int kv_head) {
    int n = 0;
    for (int p = 0; p <= app.view.row; ++p)
        n += app.run.history.stored(lane, kv_head, p, app.view.row) ? 1 : 0;
    return n;
}

/// Returns the share of the watched words that the head's cache keeps after the shown step.
float watched_share(const AppState& app, int layer, int head) {
    if (!app.view.watched) return NAN;
    return span_share(app.run.history, lane_of_row(app.run.history, app.shown_lane(), app.view.row),
                      app.run.history.layout(app.shown_lane()).kv_head_from_head(layer, head),
                      *app.view.watched, app.view.row);
}

/// Draws a head's measure at the shown step: a colour from 0 (dark) to 1, and the number if it fits.
void draw_measure(const PanelContext& context, ImDrawList& list, const LaneRecord* record, int layer,
                  int head, ImVec2 min, ImVec2 max) {
    const AppState& app = context.app;
    const int kind = app.view.atlas_measure;
    const float value = kind == ViewState::kWatchedSpan ? watched_share(app, layer, head)
                        : record == nullptr             ? NAN
                                            : head_measure(*record, curve_kinds()[to_index(kind)].measure,
                                                           app.run.history.run().config.n_heads, layer, head);
    if (std::isnan(value)) {
        list.AddRectFilled(min, max, theme::rgb(44, 47, 55));
        return;
    }
    const float u = std::clamp(value, 0.0f, 1.0f);
    const Rgb8 c = colormap_table(Colormap::viridis)[static_cast<std::size_t>(u * 255)];
    list.AddRectFilled(min, max, theme::rgb(c.r, c.g, c.b));
    const std::string text = fmt::format("{:.2f}", double(value));
    const ImVec2 size = ImGui::CalcTextSize(text.c_str());
    if (size.x + 2 < max.x - min.x && size.y < max.y - min.y)
        list.AddText({(min.x + max.x - size.x) / 2, (min.y + max.y - size.y) / 2},
                     u > 0.6f ? theme::rgb(16, 20, 24) : theme::kText, text.c_str());
}

}  // namespace

void draw(AtlasPanel& panel, const PanelContext& context) {
    const AppState& app = context.app;
    heading(context, "Atlas");
    ImGui::SameLine();
    if (!app.run.has_steps()) {
        dim_text(context, "waits for the prompt");
        return;
    }
    const RunInfo& info = app.run.history.run();
    const int n_layers = info.config.n_layers, n_heads = info.config.n_heads;
    const int factor = app.maps.lane.atlas().empty() ? 1 : app.maps.lane.atlas().front().factor();
    if (app.view.atlas_measure == ViewState::kWatchedSpan) {
        dim_text(context, app.view.watched ? fmt::format("watched words kept after step {}", app.view.row)
                                           : "no words are watched; W watches the picked ones");
    } else if (app.view.atlas_measure >= 0) {
        const Measure& m = measure(curve_kinds()[to_index(app.view.atlas_measure)].measure);
        dim_text(context, fmt::format("{} at step {}", m.label, app.view.row));
        tooltip(context, measure_tooltip(m.name) + "\nShift+V shows the next measure.");
    } else
        dim_text(context, atlas_note(app.view.mode, n_layers, n_heads, std::max(factor, panel.side)));

    const ScopedFont font(context.fonts.small);
    const float label = ImGui::CalcTextSize("L00").x + context.px(4);
    const float line = ImGui::GetFontSize() + context.px(2);
    const ImVec2 origin = ImGui::GetCursorScreenPos();
    const ImVec2 room = ImGui::GetContentRegionAvail();
    const float cell_width = std::floor((room.x - label) / static_cast<float>(n_heads));
    // On a projector fewer, square thumbnails: the layers around the focused one.
    const bool few = app.view.arrangement == Arrangement::teach;
    const int n_shown =
        few ? std::clamp(static_cast<int>((room.y - line) / std::max(cell_width, 1.0f)), 1, n_layers)
            : n_layers;
    const int first_layer = std::clamp(app.view.layer - n_shown / 2, 0, n_layers - n_shown),
              last_layer = first_layer + n_shown;
    const float cell_height = std::floor(
        std::min((room.y - line) / static_cast<float>(n_shown), cell_width * (few ? 1.0f : 1.25f)));
    const float gap = std::clamp(std::floor(cell_width / 20), 1.0f, context.px(4));
    ImDrawList& list = *ImGui::GetWindowDrawList();
    if (cell_width < 3 || cell_height < 3) return;

    const int lane = app.shown_lane();
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

    const bool by_measure = app.view.atlas_measure != -1;
    const LaneRecord* record = app.record(app.view.lane);
    std::vector<HeatQuad> quads;
    const bool by_group = info.config.n_kv_heads < n_heads;
    for (int h = 0; h < n_heads; ++h) {
        const std::string text = fmt::format("{}", h);
        const float width = ImGui::CalcTextSize(text.c_str()).x;
        if (width + 2 < cell_width)
            list.AddText(
                {origin.x + label + cell_width * (static_cast<float>(h) + 0.5f) - width / 2, origin.y},
                h == app.view.head ? theme::kText : theme::kFaint, text.c_str());
    }
    for (int l = first_layer; l < last_layer; ++l) {
        const float top = origin.y + line + cell_height * static_cast<float>(l - first_layer);
        const std::string text = fmt::format("L{}", l);
        if (cell_height > line)
            list.AddText({origin.x, top + (cell_height - line) / 2},
                         l == app.view.layer ? theme::kText : theme::kFaint, text.c_str());
        for (int h = 0; h < n_heads; ++h) {
            const ImVec2 min(origin.x + label + cell_width * static_cast<float>(h), top);
            const ImVec2 max(min.x + cell_width - gap, min.y + cell_height - gap);
            HeatQuad quad;
            quad.canvas = frame_rect(context, min, max);
            quad.view.fit(app.run.history.n_positions(), app.run.history.n_positions(), quad.canvas.width,
                          quad.canvas.height);
            panel.side = 1 << std::max(quad.view.level(), 0);
            quad.matrix = l * n_heads + h;
            quad.kv_head = app.run.history.layout(app.shown_lane()).kv_head_from_head(l, h);
            quad.mode = app.view.mode == HeatMode::mask ? HeatMode::mask : HeatMode::attention;
            quad.mask_overlay = app.view.mask_overlay;
            quad.scale = scale;
            quad.shown_row = app.view.row;
            if (by_measure)
                draw_measure(context, list, record, l, h, min, max);
            else if (!app.maps.lane.atlas().empty())
                quads.push_back(quad);
        }
    }
    paint_heat(context, context.painters.focus, list, std::move(quads));

    const ImVec2 grid(cell_width * static_cast<float>(n_heads), cell_height * static_cast<float>(n_shown));
    ImGui::SetCursorScreenPos({origin.x + label, origin.y + line});
    ImGui::InvisibleButton("atlas", grid);
    mark_item(context, "atlas");
    const auto rect_of = [&](int l, int h) {
        const ImVec2 min(origin.x + label + cell_width * static_cast<float>(h),
                         origin.y + line + cell_height * static_cast<float>(l - first_layer));
        return std::pair(min, ImVec2(min.x + cell_width - gap, min.y + cell_height - gap));
    };
    if (by_group) {  // heads that share one KV head are underlined together
        const int group = n_heads / info.config.n_kv_heads;
        for (int l = first_layer; l < last_layer; ++l)
            for (int g = 0; g < info.config.n_kv_heads; ++g) {
                const auto [min, unused] = rect_of(l, g * group);
                const auto [unused2, max] = rect_of(l, g * group + group - 1);
                (void)unused;
                (void)unused2;
                list.AddLine({min.x, max.y + gap / 2}, {max.x, max.y + gap / 2}, theme::kDim,
                             std::max(1.0f, gap / 2));
            }
    }
    const auto [focus_min, focus_max] = rect_of(app.view.layer, app.view.head);
    list.AddRect({focus_min.x - 1.5f, focus_min.y - 1.5f}, {focus_max.x + 1.5f, focus_max.y + 1.5f},
                 theme::kWarm, 2, 0, 2);
    if (ImGui::IsItemHovered()) {
        const ImVec2 mouse = ImGui::GetMousePos();
        const int h = std::clamp(static_cast<int>((mouse.x - origin.x - label) / cell_width), 0, n_heads - 1);
        const int l = first_layer +
                      std::clamp(static_cast<int>((mouse.y - origin.y - line) / cell_height), 0, n_shown - 1);
        const auto [min, max] = rect_of(l, h);
        list.AddRect({min.x - 1, min.y - 1}, {max.x + 1, max.y + 1}, theme::kText, 2);
        const int g = app.run.history.layout(app.shown_lane()).kv_head_from_head(l, h);
        tooltip(context,
                fmt::format("Layer {}, head {}\n{}: {} of {} tokens kept\nlargest attention {}", l, h,
                            kv_head_text(app.run.history.layout(lane), g), n_stored(app, lane, g),
                            app.view.row + 1,
                            number_text(app.maps.lane.atlas()[to_index(l * n_heads + h)].largest(true))));
        if (ImGui::IsMouseClicked(0)) run(context, fmt::format("goto {} {}", l, h));
    }
}

}  // namespace keyhole
