#include "app/panels/compare_panel.h"

#include "app/panels/heatmap_panel.h"
#include "app/panels/measure_plot.h"
#include "app/window/compare.h"
#include "app/window/run_rows.h"

#include <algorithm>
#include <cmath>

namespace keyhole {

namespace {

std::string lane_title(const AppState& app, int card) {
    return fmt::format("{} {}", card,
                       preset_name(app.desk.lanes()[static_cast<std::size_t>(card)].policy.preset));
}

void colored(const std::string& text, ImU32 color) {
    ImGui::PushStyleColor(ImGuiCol_Text, color);
    ImGui::TextUnformatted(text.c_str());
    ImGui::PopStyleColor();
}

/// Overlap of what the two lanes hold after the shown row, a cell a query head.
void draw_overlap(const PanelContext& context, int a, int b, ImVec2 room) {
    AppState& app = context.app;
    const KvLayout& layout = finer_layout(app.history, a, b);
    const int n_layers = layout.n_layers(), n_heads = layout.n_heads();
    const ImVec2 origin = ImGui::GetCursorScreenPos();
    const float label = context.px(24);
    const float wide = std::floor((room.x - label) / static_cast<float>(n_heads)),
                high = std::floor(std::min(room.y / static_cast<float>(n_layers), context.px(26)));
    if (wide < 3 || high < 3) return;
    ImDrawList& list = *ImGui::GetWindowDrawList();
    ImGui::PushFont(context.fonts.small);
    std::vector<HeldBy> held;
    for (int g = 0; g < layout.n_kv_heads(); ++g) held.push_back(held_by(app.history, a, b, g, app.view.row));
    const auto box = [&](int l, int h) {
        const ImVec2 min(origin.x + label + wide * static_cast<float>(h),
                         origin.y + high * static_cast<float>(l));
        return std::pair(min, ImVec2(min.x + wide - 1, min.y + high - 1));
    };
    for (int l = 0; l < n_layers; ++l) {
        if (high >= ImGui::GetFontSize())
            list.AddText({origin.x, box(l, 0).first.y}, l == app.view.layer ? theme::kText : theme::kFaint,
                         fmt::format("L{}", l).c_str());
        for (int h = 0; h < n_heads; ++h) {
            const auto [min, max] = box(l, h);
            const double u = held[static_cast<std::size_t>(layout.kv_head_from_head(l, h))].jaccard();
            const Rgb8 c = colormap_table(Colormap::viridis)[static_cast<std::size_t>(u * 255)];
            list.AddRectFilled(min, max, theme::rgb(c.r, c.g, c.b));
            const std::string text = fmt::format("{:.2f}", u);
            const ImVec2 size = ImGui::CalcTextSize(text.c_str());
            if (size.x < max.x - min.x && size.y <= max.y - min.y)
                list.AddText({(min.x + max.x - size.x) / 2, (min.y + max.y - size.y) / 2},
                             u > 0.6 ? theme::rgb(16, 20, 24) : theme::kText, text.c_str());
        }
    }
    const auto [min, max] = box(app.view.layer, app.view.head);
    list.AddRect({min.x - 1, min.y - 1}, {max.x + 1, max.y + 1}, theme::kWarm, 1, 0, 2);
    const ImVec2 size(wide * static_cast<float>(n_heads), high * static_cast<float>(n_layers));
    ImGui::SetCursorScreenPos({origin.x + label, origin.y});
    ImGui::InvisibleButton("overlap", size);
    mark_item(context, "overlap");
    if (ImGui::IsItemHovered()) {
        const ImVec2 mouse = ImGui::GetMousePos();
        const int h = std::clamp(static_cast<int>((mouse.x - origin.x - label) / wide), 0, n_heads - 1),
                  l = std::clamp(static_cast<int>((mouse.y - origin.y) / high), 0, n_layers - 1);
        const HeldBy& of = held[static_cast<std::size_t>(layout.kv_head_from_head(l, h))];
        tooltip(context,
                fmt::format("Layer {}, head {} after row {}\nboth hold {} tokens, lane {} alone {}, lane {} "
                            "alone {}, neither {}\noverlap {:.3f}",
                            l, h, app.view.row, of.both, app.view.lane, of.only_a, app.other_card(),
                            of.only_b, of.neither, of.jaccard()));
        if (ImGui::IsMouseClicked(0)) app.view.layer = l, app.view.head = h;
    }
    ImGui::PopFont();
    ImGui::SetCursorScreenPos({origin.x, origin.y + size.y + context.px(4)});
}

/// Where the lanes' own choices part; a click shows the row before.
void draw_parting(const PanelContext& context, int a, int b) {
    AppState& app = context.app;
    const std::optional<int> at = first_divergence(app.history, a, b);
    ImGui::PushFont(context.fonts.small);
    if (!at) {
        colored("Both have chosen the same tokens so far.", theme::kGood);
    } else {
        const std::string text = fmt::format("They part at position {}: “{}” against “{}”", *at,
                                             visible(token_words(app, own_choice(app.history, a, *at))),
                                             visible(token_words(app, own_choice(app.history, b, *at))));
        ImGui::PushStyleColor(ImGuiCol_Text, theme::kWarm);
        if (ImGui::Selectable(fitted(text, ImGui::GetContentRegionAvail().x).c_str()))
            run(context, "compare.parting");
        ImGui::PopStyleColor();
        mark_item(context, "compare.parting");
        tooltip(context, text + "\nClick: the row whose distribution it was.");
    }
    ImGui::PopFont();
}

void draw_facts(const PanelContext& context) {
    AppState& app = context.app;
    const int a = app.shown_lane(), b = app.history_lane(app.other_card()).value_or(0);
    heading(context, "Overlap of kept sets");
    ImGui::SameLine();
    const auto keeps_all = [&](int card) {
        return app.desk.lanes()[static_cast<std::size_t>(card)].policy.preset == Preset::full;
    };
    const bool one_keeps_all = keeps_all(app.view.lane) || keeps_all(app.other_card());
    dim_text(context,
             fmt::format("{} by head, row {}", one_keeps_all ? "share kept," : "Jaccard,", app.view.row));
    const ImVec2 room = ImGui::GetContentRegionAvail();
    draw_overlap(context, a, b, {room.x, room.y * 0.45f});
    draw_parting(context, a, b);
    const float left = ImGui::GetContentRegionAvail().y;
    if (left < context.px(60)) return;
    const ImVec2 at = ImGui::GetCursorScreenPos(), plots = ImGui::GetContentRegionAvail();
    const float half = std::floor(plots.x / 2);
    const auto plot = [&](const char* measure, const char* title, float x) {
        ImGui::SetCursorScreenPos({at.x + x, at.y});
        dim_text(context, title);
        const float line = ImGui::GetCursorScreenPos().y - at.y;
        ImGui::SetCursorScreenPos({at.x + x, at.y + line});
        draw_measure_plot(context, curve_index(measure), {half, plots.y - line}, false);
    };
    plot("kl", "KL to lane 0, nats", 0);
    plot("agreement", "agrees with lane 0, share", half);
}

/// A pane with its heading, in a box of its own.
void draw_titled(HeatPaneState& state, const PanelContext& context, const HeatPane& pane, ImVec2 size,
                 const char* id) {
    AppState& app = context.app;
    ImGui::BeginChild(id, size, false, ImGuiWindowFlags_NoScrollbar | ImGuiWindowFlags_NoScrollWithMouse);
    if (pane.versus >= 0) {
        heading(context, "Difference");
        ImGui::SameLine();
        colored(lane_title(app, pane.card), theme::lane_color(pane.card));
        ImGui::SameLine();
        ImGui::TextUnformatted("–");
        ImGui::SameLine();
        colored(lane_title(app, pane.versus), theme::lane_color(pane.versus));
    } else {
        colored(lane_title(app, pane.card), theme::lane_color(pane.card));
        ImGui::SameLine();
        const LaneRecord* record = app.record(pane.card);
        dim_text(context, record == nullptr
                              ? "not there at this row"
                              : fitted(record->info->effective, ImGui::GetContentRegionAvail().x));
    }
    draw_heat_pane(state, context, pane);
    ImGui::EndChild();
}

}  // namespace

void draw(ComparePanel& panel, const PanelContext& context) {
    AppState& app = context.app;
    draw_heat_toolbar(context);
    if (!app.has_run()) return draw_waiting(context);
    const std::vector<int> cards = app.compared_cards();
    if (cards.empty() || app.others.size() != cards.size() ||
        context.painters.others.size() != cards.size()) {
        dim_text(context, "A comparison needs a second lane: + adds one.");
        return;
    }
    const std::string with = fmt::format("with {}", app.other_card());
    next_to(with.c_str(), context.px(12));
    command_button(context, "compare.next", with.c_str());
    next_to("all lanes", context.px(2));
    command_button(context, "compare.all", "all lanes", app.view.compares_all);
    const float gap = context.px(6);
    const ImVec2 room = ImGui::GetContentRegionAvail(), at = ImGui::GetCursorScreenPos();
    const float n = static_cast<float>(cards.size() + 1), high = std::floor((room.y - gap) / 2);
    const float wide = std::floor((room.x - gap * (n - 1)) / n);
    draw_titled(panel.panes[0], context, {app.view.lane, -1, app.heat, context.painters.focus}, {wide, high},
                "pane0");
    for (std::size_t i = 0; i < cards.size(); ++i) {
        ImGui::SetCursorScreenPos({at.x + (wide + gap) * static_cast<float>(i + 1), at.y});
        draw_titled(panel.panes[i + 1], context, {cards[i], -1, app.others[i], context.painters.others[i]},
                    {wide, high}, fmt::format("pane{}", i + 1).c_str());
    }
    const float half = std::floor((room.x - gap) / 2);
    ImGui::SetCursorScreenPos({at.x, at.y + high + gap});
    draw_titled(panel.panes[4], context,
                {app.view.lane, cards.front(), app.difference, context.painters.difference}, {half, high},
                "difference");
    ImGui::SetCursorScreenPos({at.x + half + gap, at.y + high + gap});
    ImGui::BeginChild("facts", {half, high}, false, ImGuiWindowFlags_NoScrollbar);
    draw_facts(context);
    ImGui::EndChild();
}

void draw_texts(const PanelContext& context) {
    AppState& app = context.app;
    if (!app.has_run()) return;
    heading(context, "Texts");
    ImGui::SameLine();
    dim_text(context,
             app.desk.follow()
                 ? "each lane's own next words after the same text; framed: not what the other lane chose"
                 : "what each lane wrote; framed: not what the other lane chose");
    const int cards[2] = {app.view.lane, app.other_card()};
    const int lanes[2] = {app.shown_lane(), app.history_lane(cards[1]).value_or(0)};
    const ImVec2 room = ImGui::GetContentRegionAvail(), at = ImGui::GetCursorScreenPos();
    const float gap = context.px(6), wide = std::floor((room.x - gap) / 2);
    for (int side = 0; side < 2; ++side) {
        ImGui::SetCursorScreenPos({at.x + (wide + gap) * static_cast<float>(side), at.y});
        ImGui::PushStyleColor(ImGuiCol_ChildBg, theme::rgb(26, 28, 34));
        ImGui::BeginChild(side == 0 ? "text a" : "text b", {wide, room.y}, true);
        ImDrawList& list = *ImGui::GetWindowDrawList();
        const ImVec2 origin = ImGui::GetCursorScreenPos();
        const float width = ImGui::GetContentRegionAvail().x, line = ImGui::GetFontSize() + context.px(6);
        const std::string name = lane_title(app, cards[side]);
        list.AddText(origin, theme::lane_color(cards[side]), name.c_str());
        float x = ImGui::CalcTextSize(name.c_str()).x + context.px(10), y = 0;
        for (int p = app.history.n_prompt(); p <= app.view.row + 1; ++p) {
            const int own = own_choice(app.history, lanes[side], p),
                      other = own_choice(app.history, lanes[1 - side], p);
            if (own < 0) continue;
            const std::string& text = token_words(app, own);
            const float size = std::max(ImGui::CalcTextSize(text.c_str()).x, context.px(4));
            if (x + size > width) x = 0, y += line;
            const ImVec2 min(origin.x + x, origin.y + y), max(min.x + size, min.y + line - context.px(3));
            x += size + 1;
            const bool differs = other >= 0 && other != own;
            if (differs) {
                list.AddRectFilled(min, max, theme::faded(theme::kWarm, 0.25f), 2);
                list.AddRect(min, max, theme::kWarm, 2);
            }
            list.AddText({min.x, min.y + context.px(1)}, differs ? theme::kWarm : theme::kText, text.c_str());
            context.shared.items[fmt::format("choice {} {}", side, p)] = {min, max};
            if (ImGui::IsWindowHovered() && ImGui::IsMouseHoveringRect(min, max)) {
                ImGui::SetTooltip("position %d, chosen after row %d", p, p - 1);
                if (ImGui::IsMouseClicked(0)) run(context, fmt::format("row {}", p - 1));
            }
        }
        ImGui::Dummy({width, y + line});
        ImGui::EndChild();
        ImGui::PopStyleColor();
    }
}

}  // namespace keyhole
