#include "app/panels/compare_overlap.h"

#include "app/panels/measure_plot.h"
#include "engine/analysis/compare.h"
#include "engine/analysis/watched_span.h"
#include "engine/base/index.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace keyhole {

namespace {

/// A cell of the heads' matrix: one value, or one a lane.
struct HeadValue {
    std::string of_both;       ///< for the tooltip
    std::array<float, 2> u{};  ///< 0..1, NaN: none
    int n = 1;
};

HeadValue overlap_of(const AppState& app, const HeldBy& held) {
    return {
        fmt::format(
            "both keep {} tokens, only lane {} keeps {}, only lane {} keeps {}, neither {}\noverlap {:.3f}",
            held.both, app.view.lane, held.only_a, app.other_lane(), held.only_b, held.neither,
            held.overlap()),
        {static_cast<float>(held.overlap())}};
}

/// Returns how much of the watched words the head keeps in each of the two lanes.
HeadValue watched_of(const AppState& app, int a, int b, int layer, int head) {
    HeadValue value{"of the watched words", {}, 2};
    const int known[2] = {a, b}, lanes[2] = {app.view.lane, app.other_lane()};
    for (std::size_t i = 0; i < 2; ++i) {
        const int g = app.run.history.layout(known[i]).kv_head_from_head(layer, head);
        value.u[i] = span_share(app.run.history, known[i], g, *app.view.watched, app.view.row);
        value.of_both +=
            fmt::format("{} lane {} keeps {:.0f} %", i == 0 ? "" : ",", lanes[i], double(value.u[i]) * 100);
    }
    return value;
}

/// Draws a matrix of layers x query heads after the shown step: the overlap of the two lanes' kept sets, or
/// how much of the watched words each lane keeps.
void draw_heads(const PanelContext& context, int a, int b, ImVec2 room) {
    const AppState& app = context.app;
    const KvLayout& layout = finer_layout(app.run.history, a, b);
    const int n_layers = layout.n_layers(), n_heads = layout.n_heads();
    const ImVec2 origin = ImGui::GetCursorScreenPos();
    const float label = context.px(24);
    const float wide = std::floor((room.x - label) / static_cast<float>(n_heads)),
                high = std::floor(std::min(room.y / static_cast<float>(n_layers), context.px(26)));
    if (wide < 3 || high < 3) return;
    ImDrawList& list = *ImGui::GetWindowDrawList();
    const ScopedFont font(context.fonts.small);
    const bool watched = app.compares_watched();
    std::vector<HeldBy> held;
    for (int g = 0; g < layout.n_kv_heads() && !watched; ++g)
        held.push_back(held_by(app.run.history, a, b, g, app.view.row));
    const auto value_of = [&](int l, int h) {
        return watched ? watched_of(app, a, b, l, h)
                       : overlap_of(app, held[to_index(layout.kv_head_from_head(l, h))]);
    };
    const auto box = [&](int l, int h) {
        const ImVec2 min(origin.x + label + wide * static_cast<float>(h),
                         origin.y + high * static_cast<float>(l));
        return std::pair(min, ImVec2(min.x + wide - 1, min.y + high - 1));
    };
    const auto part = [&](ImVec2 min, ImVec2 max, float u) {
        if (std::isnan(u))
            return list.AddRectFilled(min, max,
                                      theme::opaque(cell_colors(context.app.view.background).missing));
        const Rgb8 c = colormap_table(Colormap::viridis)[static_cast<std::size_t>(u * 255)];
        list.AddRectFilled(min, max, theme::opaque(c));
        const std::string text = watched ? fmt::format("{:.0f}", u * 100) : fmt::format("{:.2f}", u);
        const ImVec2 size = ImGui::CalcTextSize(text.c_str());
        if (size.x < max.x - min.x && size.y <= max.y - min.y)
            list.AddText({(min.x + max.x - size.x) / 2, (min.y + max.y - size.y) / 2},
                         u > 0.6 ? theme::kOnBright : theme::kOnDark, text.c_str());
    };
    for (int l = 0; l < n_layers; ++l) {
        if (high >= ImGui::GetFontSize())
            list.AddText({origin.x, box(l, 0).first.y},
                         l == app.view.layer ? theme::colors().text : theme::colors().faint,
                         fmt::format("L{}", l).c_str());
        for (int h = 0; h < n_heads; ++h) {
            const auto [min, max] = box(l, h);
            const HeadValue value = value_of(l, h);
            const float middle = value.n == 1 ? max.x : std::floor((min.x + max.x) / 2);
            part(min, {middle, max.y}, value.u[0]);
            if (value.n == 2) part({middle, min.y}, max, value.u[1]);
        }
    }
    const auto [min, max] = box(app.view.layer, app.view.head);
    list.AddRect({min.x - 1, min.y - 1}, {max.x + 1, max.y + 1}, theme::colors().warm, 1, 0, 2);
    const ImVec2 size(wide * static_cast<float>(n_heads), high * static_cast<float>(n_layers));
    ImGui::SetCursorScreenPos({origin.x + label, origin.y});
    ImGui::InvisibleButton("overlap", size);
    mark_plot(context, "overlap");
    if (ImGui::IsItemHovered()) {
        const ImVec2 mouse = ImGui::GetMousePos();
        const int h = std::clamp(static_cast<int>((mouse.x - origin.x - label) / wide), 0, n_heads - 1),
                  l = std::clamp(static_cast<int>((mouse.y - origin.y) / high), 0, n_layers - 1);
        tooltip(context, fmt::format("Layer {}, head {} after step {}\n{}", l, h, app.view.row,
                                     value_of(l, h).of_both));
        if (ImGui::IsMouseClicked(0)) run(context, fmt::format("goto {} {}", l, h));
    }
    ImGui::SetCursorScreenPos({origin.x, origin.y + size.y + context.px(4)});
}

/// Draws where the lanes' choices first differ. A click shows the step before.
void draw_first_difference(const PanelContext& context, int a, int b) {
    const AppState& app = context.app;
    const std::optional<int> at = first_divergence(app.run.history, a, b);
    const ScopedFont font(context.fonts.small);
    if (!at) {
        colored_text(theme::colors().good, "Both have chosen the same tokens so far.");
    } else {
        const std::string text = fmt::format("They first differ at position {}: “{}” and “{}”", *at,
                                             visible(token_words(app, own_choice(app.run.history, a, *at))),
                                             visible(token_words(app, own_choice(app.run.history, b, *at))));
        {
            const ScopedColor color(ImGuiCol_Text, theme::colors().warm);
            if (ImGui::Selectable(fitted(text, ImGui::GetContentRegionAvail().x).c_str()))
                run(context, "compare.first-difference");
        }
        mark_item(context, "compare.first-difference");
        tooltip(context, text + "\nClick: shows the step that chose it.");
    }
}

/// Plots the share of steps so far after which the two lanes chose the same token. If lane 0 is one of the
/// pair, plots all lanes against lane 0.
void draw_agreement(const PanelContext& context, int a, int b, ImVec2 room) {
    const AppState& app = context.app;
    if (app.view.lane == 0 || app.other_lane() == 0)
        return draw_measure_plot(context, curve_index("agreement"), room, false);
    const std::vector<float> share = agreement_so_far(app.run.history, a, b);
    const RowLine line{share, -1, true};
    if (draw_row_lines(context, {&line, 1}, false, "nothing recorded yet", room))
        tooltip(context,
                fmt::format("Share of the steps so far after which lanes {} and {} chose the same token",
                            app.view.lane, app.other_lane()));
}

/// Plots how much of the watched words each lane keeps, as a mean over its heads.
void draw_watched(const PanelContext& context, ImVec2 room) {
    const AppState& app = context.app;
    std::vector<std::vector<float>> shares;
    std::vector<RowLine> lines;
    for (int lane = 0; lane < app.run.lane_editor.n_lanes(); ++lane)
        if (const auto known = app.run.history_lane(lane)) {
            shares.push_back(span_lifetime(app.run.history, *known, *app.view.watched).share);
            lines.push_back({shares.back(), lane, lane == app.view.lane});
        }
    if (draw_row_lines(context, lines, false, "the lanes have not yet read the watched words", room))
        tooltip(context, "Share of the watched words that each lane keeps, mean over its KV heads");
}

}  // namespace

void draw_overlap(const PanelContext& context) {
    const AppState& app = context.app;
    const int a = app.shown().at(app.view.lane).known.value(),
              b = app.shown().at(app.other_lane()).known.value();
    const bool watched = app.compares_watched();
    const int lanes[2] = {app.view.lane, app.other_lane()};
    heading(context, watched ? "Watched words" : "Overlap of kept sets");
    ImGui::SameLine();
    const auto keeps_all = [&](int lane) { return app.shown().at(lane).spec.policy.preset == Preset::full; };
    const bool one_keeps_all = keeps_all(lanes[0]) || keeps_all(lanes[1]);
    dim_text(context, watched ? fmt::format("% kept by lane {} | {}, by head, step {}", lanes[0], lanes[1],
                                            app.view.row)
                              : fmt::format("{} by head, step {}", one_keeps_all ? "share kept," : "Jaccard,",
                                            app.view.row));
    const ImVec2 room = ImGui::GetContentRegionAvail();
    draw_heads(context, a, b, {room.x, room.y * 0.45f});
    draw_first_difference(context, a, b);
    const float left = ImGui::GetContentRegionAvail().y;
    if (left < context.px(100)) return;  // a heading over no plot says nothing
    const ImVec2 at = ImGui::GetCursorScreenPos(), plots = ImGui::GetContentRegionAvail();
    const float half = std::floor(plots.x / 2);
    const auto plot = [&](const std::string& title, float x, auto&& draw_it) {
        ImGui::SetCursorScreenPos({at.x + x, at.y});
        const ScopedId id(static_cast<int>(x));
        const ScopedChild child("plot", {half, plots.y}, false, ImGuiWindowFlags_NoScrollbar);
        dim_text(context, title);
        draw_it(ImGui::GetContentRegionAvail());
    };
    const bool with_first = lanes[0] == 0 || lanes[1] == 0;
    plot(with_first ? "KL to lane 0, nats" : "KL of each to lane 0, nats", 0,
         [&](ImVec2 size) { draw_measure_plot(context, curve_index("kl"), size, false); });
    if (watched)
        plot("watched words kept, share", half, [&](ImVec2 size) { draw_watched(context, size); });
    else
        plot(with_first ? "agrees with lane 0, share"
                        : fmt::format("{} and {} agree, share", lanes[0], lanes[1]),
             half, [&](ImVec2 size) { draw_agreement(context, a, b, size); });
}

}  // namespace keyhole
