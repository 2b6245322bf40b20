#include "app/panels/compare_panel.h"

#include "app/panels/compare_overlap.h"
#include "app/panels/heatmap_panel.h"
#include "engine/analysis/compare.h"
#include "engine/base/index.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace keyhole {

namespace {

/// Draws a pane with its heading in its own box.
void draw_titled(HeatPaneState& state, const PanelContext& context, const HeatPane& pane, ImVec2 size,
                 const char* id) {
    const AppState& app = context.app;
    const ScopedChild child(id, size, false,
                            ImGuiWindowFlags_NoScrollbar | ImGuiWindowFlags_NoScrollWithMouse);
    const ImVec2 at = ImGui::GetWindowPos();
    mark_area(context, fmt::format("compare {}", id), at, {at.x + size.x, at.y + size.y});
    if (pane.versus >= 0) {
        heading(context, "Difference");
        ImGui::SameLine();
        const LaneOnShow &a = app.shown().at(pane.lane), &b = app.shown().at(pane.versus);
        colored_text(lane_ink(context, pane.lane), a.title);
        ImGui::SameLine();
        ImGui::TextUnformatted("–");
        ImGui::SameLine();
        colored_text(lane_ink(context, pane.versus), b.title);
        draw_lane_mark(context, pane.lane, false);
        draw_lane_mark(context, pane.versus, false);
        if (!shows_lane(context, "difference", pane.lane) ||
            !shows_lane(context, "difference minus", pane.versus))
            return;
        if (const auto step = first_other_token(app.run.history, *a.known, *b.known)) {
            ImGui::SameLine();
            dim_text(context, fmt::format("texts differ from step {}", *step));
        }
    } else {
        const LaneOnShow& shown = app.shown().at(pane.lane);
        colored_text(lane_ink(context, pane.lane), shown.title);
        draw_lane_mark(context, pane.lane, false);
        if (!shows_lane(context, id, pane.lane)) return;
        ImGui::SameLine();
        if (shown.record != nullptr)
            dim_text(context, fitted(shown.record->info->effective, ImGui::GetContentRegionAvail().x));
        else if (shown.source == LaneOnShow::Source::own)
            dim_text(context, "not present at this step");
        else
            ImGui::NewLine();
    }
    draw_heat_pane(state, context, pane);
}

/// Draws the tokens that the two lanes chose, one lane above the other, with a column a position.
void draw_own_words(ComparePanel& panel, const PanelContext& context) {
    const AppState& app = context.app;
    const int lanes[2] = {app.view.lane, app.other_lane()};
    heading(context, "Own words");
    ImGui::SameLine();
    dim_text(context, app.run.lane_editor.follow()
                          ? "the token that each would choose after the same text; framed: they differ"
                          : "the token that each chose; framed: they differ");
    draw_lane_mark(context, lanes[0]);
    draw_lane_mark(context, lanes[1]);
    if (!shows_lane(context, "own words", lanes[0]) || !shows_lane(context, "own words 2", lanes[1])) return;
    const int known[2] = {*app.shown().at(lanes[0]).known, *app.shown().at(lanes[1]).known};
    const ScopedChild child = words_child(context, "own words", 4);
    ImDrawList& list = *ImGui::GetWindowDrawList();
    const ImVec2 origin = ImGui::GetCursorScreenPos();
    const float width = ImGui::GetContentRegionAvail().x, line = ImGui::GetFontSize() + context.px(4),
                left = ImGui::CalcTextSize("0").x + context.px(10), pair = 2 * line + context.px(6);
    const float clip_top = ImGui::GetWindowPos().y, clip_bottom = clip_top + ImGui::GetWindowHeight();
    float x = left, y = 0;
    const auto name_lanes = [&] {
        for (int side = 0; side < 2; ++side)
            list.AddText({origin.x, origin.y + y + line * static_cast<float>(side)},
                         lane_ink(context, lanes[side]), fmt::format("{}", lanes[side]).c_str());
    };
    name_lanes();
    for (int p = app.run.history.n_prompt(); p <= app.view.row + 1; ++p) {
        const int own[2] = {own_choice(app.run.history, known[0], p),
                            own_choice(app.run.history, known[1], p)};
        if (own[0] < 0 && own[1] < 0) continue;
        std::string words[2];
        float wide = context.px(6);
        for (std::size_t side = 0; side < 2; ++side) {
            if (own[side] >= 0) words[side] = visible(token_words(app, own[side]));
            wide = std::max(wide, ImGui::CalcTextSize(words[side].c_str()).x);
        }
        if (x + wide > width && x > left) {
            x = left;
            y += pair;
            name_lanes();
        }
        const bool differs = own[0] >= 0 && own[1] >= 0 && own[0] != own[1];
        const ImVec2 min(origin.x + x, origin.y + y), max(min.x + wide, min.y + 2 * line);
        x += wide + context.px(2);
        if (max.y < clip_top || min.y > clip_bottom) continue;
        if (differs) {
            list.AddRectFilled(min, max, theme::faded(theme::colors().warm, 0.18f), 2);
            list.AddRect(min, max, theme::faded(theme::colors().warm, 0.8f), 2);
        }
        for (std::size_t side = 0; side < 2; ++side)
            list.AddText({min.x, min.y + line * static_cast<float>(side)},
                         differs ? lane_ink(context, lanes[side]) : theme::colors().text,
                         words[side].c_str());
        mark_area(context, fmt::format("choice {}", p), min, max);
        if (ImGui::IsWindowHovered() && ImGui::IsMouseHoveringRect(min, max)) {
            ImGui::SetTooltip("position %d, chosen after step %d", p, p - 1);
            if (ImGui::IsMouseClicked(0)) run(context, fmt::format("time.show {}", p - 1));
        }
    }
    ImGui::Dummy({width, y + pair});
    if (std::exchange(panel.scrolled_to, app.view.row) != app.view.row)
        ImGui::SetScrollFromPosY(origin.y - ImGui::GetWindowPos().y + y + pair, 1);
}

}  // namespace

void draw(ComparePanel& panel, const PanelContext& context) {
    const AppState& app = context.app;
    draw_heat_toolbar(context);
    if (!app.run.has_steps()) return draw_waiting(context);
    const std::vector<int> lanes = app.compared_lanes();
    if (lanes.empty() || app.maps.others.size() != lanes.size() ||
        context.painters.others.size() != lanes.size()) {
        dim_text(context, "A comparison needs a second lane; + adds one.");
        return;
    }
    const std::string with = fmt::format("with {}", app.other_lane());
    next_to(with.c_str(), context.px(12));
    action_button(context, "compare.next", with.c_str());
    next_to("all lanes", context.px(2));
    action_button(context, "compare.all", "all lanes", app.view.compares_all);
    if (app.view.watched) {
        next_to("watched", context.px(2));
        action_button(context, "compare.watched", "watched", app.compares_watched());
    }
    const float gap = context.px(6);
    const ImVec2 room = ImGui::GetContentRegionAvail(), at = ImGui::GetCursorScreenPos();
    // Below a row of maps come the difference and the overlap, where both rows can be read.
    const float of_two = std::floor((room.y - gap) / 2);
    const bool has_two = of_two >= context.px(100);
    const float high = has_two ? of_two : room.y - gap - ImGui::GetTextLineHeight();
    // Three or more lanes share one colour bar, at the end, and one row axis, at the beginning.
    const std::size_t n = lanes.size() + 1;
    const bool shares = n > 2;
    const float axis = shares ? context.px(34) : 0, bar = shares ? heat_scale_width(context) : 0;
    const float wide =
        std::floor((room.x - gap * static_cast<float>(n - 1) - axis - bar) / static_cast<float>(n));
    float x = 0;
    for (std::size_t i = 0; i < n; ++i) {
        const bool first = i == 0, last = i + 1 == n;
        HeatPane pane{first ? app.view.lane : lanes[i - 1], -1,
                      first ? app.maps.lane : app.maps.others[i - 1],
                      first ? context.painters.focus : context.painters.others[i - 1]};
        pane.scale = last || !shares;
        pane.rows = first || !shares;
        const float width = wide + (first ? axis : 0) + (last ? bar - (shares ? context.px(14) : 0) : 0);
        ImGui::SetCursorScreenPos({at.x + x, at.y});
        draw_titled(panel.panes[i], context, pane, {width, high}, fmt::format("pane{}", i).c_str());
        x += width + gap;
    }
    ImGui::SetCursorScreenPos({at.x, at.y + high + gap});
    if (!has_two) {
        const ScopedFont font(context.fonts.small);
        dim_text(context, "A taller window shows the difference and the overlap of two lanes here.");
        mark_item(context, "compare needs height");
        return;
    }
    const float half = std::floor((room.x - gap) / 2);
    draw_titled(panel.panes[4], context,
                {app.view.lane, lanes.front(), app.maps.difference, context.painters.difference},
                {half, high}, "difference");
    ImGui::SetCursorScreenPos({at.x + half + gap, at.y + high + gap});
    const ScopedChild facts("facts", {half, high}, false, ImGuiWindowFlags_NoScrollbar);
    if (shows_lane(context, "overlap", app.view.lane) && shows_lane(context, "overlap 2", app.other_lane()))
        draw_overlap(context);
}

void draw_texts(ComparePanel& panel, TextPanel& text, const PanelContext& context) {
    const AppState& app = context.app;
    if (!app.run.has_steps()) return;
    if (app.run.lane_editor.n_lanes() < 2) return draw(text, context);
    const ImVec2 room = ImGui::GetContentRegionAvail(), at = ImGui::GetCursorScreenPos();
    const float gap = context.px(8);
    const bool beside = room.x >= context.px(560);
    const ImVec2 first = beside ? ImVec2(std::floor((room.x - gap) * 0.58f), room.y)
                                : ImVec2(room.x, std::floor((room.y - gap) * 0.55f));
    const ImVec2 second =
        beside ? ImVec2(room.x - first.x - gap, room.y) : ImVec2(room.x, room.y - first.y - gap);
    {
        const ScopedChild child("text of lane", first, false, ImGuiWindowFlags_NoScrollbar);
        draw(text, context);
    }
    ImGui::SetCursorScreenPos(beside ? ImVec2(at.x + first.x + gap, at.y)
                                     : ImVec2(at.x, at.y + first.y + gap));
    const ScopedChild child("words of lanes", second, false, ImGuiWindowFlags_NoScrollbar);
    draw_own_words(panel, context);
}

}  // namespace keyhole
