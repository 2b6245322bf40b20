#include "app/panels/arrangement.h"

#include "app/panels/cell_view.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

namespace keyhole {

namespace {

/// A pane of a group that shares one column; one pane of the group is visible.
struct Turn {
    SidePane pane;
    const char* label;
    ImGuiWindowFlags flags;
    std::function<void()> draw;
};

/// The places of the panes, in unscaled pixels. The focused head has priority. If it would get too little
/// room, other panes share a column beside it: first lanes and details, then also atlas and curves, and at
/// last the text too.
struct Plan {
    bool apart = true;   ///< lanes left, details right; false: they share the left column
    bool column = true;  ///< atlas and curves have a column; false: they share too
    bool strip = true;   ///< the text has its place below; false: it shares too
    float left = 0, right = 0, atlas = 0, bottom = 0;
};

constexpr float kGap = 6;

Plan plan_of(const ViewState& view, float wide, float high) {
    constexpr float kFocus = 330, kStacked = 300, kPair = 560;  // widths, and the height of atlas and curves
    const bool compares = view.arrangement == Arrangement::compare,
               teaches = view.arrangement == Arrangement::teach;
    const auto chosen = [](float by_user, float by_window) { return by_user > 0 ? by_user : by_window; };
    Plan plan;
    plan.strip = high >= 420;
    plan.bottom = !plan.strip ? 46 + kGap
                              : chosen(view.bottom_height, std::clamp(high * (teaches ? 0.25f : 0.2f),
                                                                      high < 560 ? 130.0f : 162.0f, 260.0f));
    plan.right = chosen(view.right_width, std::clamp(wide * 0.2f, 252.0f, 350.0f));
    plan.left = teaches ? -kGap : chosen(view.left_width, std::clamp(wide * 0.185f, 240.0f, 320.0f));
    const auto atlas_in = [&](float centre) {
        const float width =
            chosen(view.atlas_width, std::clamp(centre * 0.37f, teaches ? 270.0f : 230.0f, 420.0f));
        return std::clamp(width, 120.0f, std::max(centre - 200, 121.0f));
    };
    const float middle = high - 92 - plan.bottom;  // without menu, buttons and status line
    const float centre = wide - plan.left - plan.right - 4 * kGap;
    plan.atlas = compares ? 0 : atlas_in(centre);
    const auto fits = [&](float room) {
        return compares ? room >= kPair : room - plan.atlas - kGap >= kFocus && middle >= kStacked;
    };
    if (fits(centre)) return plan;
    plan.apart = false;
    plan.right = -kGap;
    if (teaches || plan.left < 100) plan.left = 240;
    plan.atlas = compares ? 0 : atlas_in(wide - plan.left - 3 * kGap);
    if (compares || (!teaches && fits(wide - plan.left - 3 * kGap))) return plan;
    plan.column = false;
    plan.atlas = -kGap;
    plan.left = chosen(view.left_width, std::clamp(wide * 0.34f, 240.0f, 320.0f));
    plan.left = std::min(plan.left, std::max(wide - kFocus, wide * 0.45f));
    return plan;
}

void draw_turn_buttons(const PanelContext& context, const std::vector<Turn>& turns, const Turn& on) {
    const ScopedFont font(context.fonts.small);
    const ScopedVar padding(ImGuiStyleVar_FramePadding, {context.px(5), context.px(3)});
    for (const Turn& turn : turns) {
        if (&turn != &turns.front()) next_to(turn.label, context.px(2));
        const std::string_view name = side_pane_name(turn.pane);
        if (lit_button(turn.label, &turn == &on)) run(context, fmt::format("view.side {}", name));
        mark_item(context, fmt::format("side {}", name));
        action_tooltip(context, "view.side");
    }
}

/// Draws a row of pane names, and the chosen pane below it.
void draw_turns(const PanelContext& context, const std::vector<Turn>& turns) {
    const SidePane side = context.app.view.side;
    const auto shown =
        std::find_if(turns.begin(), turns.end(), [&](const Turn& t) { return t.pane == side; });
    const Turn& on = shown == turns.end() ? turns.front() : *shown;
    draw_turn_buttons(context, turns, on);
    const ScopedChild child(on.label, {0, 0}, false, on.flags);
    on.draw();
}

/// Begins a window that fills all the room, without a frame. Call End() afterwards.
void begin_whole_window(ImVec2 size, float gap) {
    ImGui::SetNextWindowPos({0, 0});
    ImGui::SetNextWindowSize(size);
    const ScopedVar rounding(ImGuiStyleVar_WindowRounding, 0), border(ImGuiStyleVar_WindowBorderSize, 0),
        padding(ImGuiStyleVar_WindowPadding, {gap, gap});
    // No background: the frame is cleared to its colour, which saves blending one layer.
    ImGui::Begin("Keyhole", nullptr,
                 ImGuiWindowFlags_NoTitleBar | ImGuiWindowFlags_NoResize | ImGuiWindowFlags_NoMove |
                     ImGuiWindowFlags_MenuBar | ImGuiWindowFlags_NoBringToFrontOnFocus |
                     ImGuiWindowFlags_NoScrollbar | ImGuiWindowFlags_NoScrollWithMouse |
                     ImGuiWindowFlags_NoBackground);
}

}  // namespace

void lay_out(Panels& panels, const PanelContext& context) {
    const AppState& app = context.app;
    const ViewState& view = app.view;
    const ImVec2 size = ImGui::GetIO().DisplaySize;
    const float s = context.scale, gap = std::round(kGap * s);
    const bool side_by_side = view.arrangement == Arrangement::compare,
               teaches = view.arrangement == Arrangement::teach;
    const Plan plan = plan_of(view, size.x / s, size.y / s);
    const float left_width = std::round(plan.left * s), right_width = std::round(plan.right * s),
                bottom_height = std::round(plan.bottom * s);
    const float time_height = std::round(46 * s), status_height = std::round(22 * s);

    begin_whole_window(size, gap);
    draw_menus(panels.top, context);
    draw(panels.top, context);

    const float top = ImGui::GetCursorScreenPos().y + std::round(2 * s);
    const float bottom = size.y - status_height;
    const float middle_end = bottom - bottom_height - gap;
    const float centre_left = gap + left_width + gap, centre_right = size.x - gap - right_width - gap;
    const float centre = centre_right - centre_left;
    const float atlas_width = std::round(plan.atlas * s);
    const auto pane = [&](const char* id, float x, float y, float width, float height, auto&& body,
                          ImGuiWindowFlags flags = 0) {
        ImGui::SetCursorScreenPos({std::round(x), std::round(y)});
        const ScopedChild child(id, {std::round(width), std::round(height)}, false,
                                ImGuiWindowFlags_AlwaysUseWindowPadding | flags);
        const ImVec2 min = ImGui::GetWindowPos(), extent = ImGui::GetWindowSize();
        mark_area(context, fmt::format("pane {}", id), min, {min.x + extent.x, min.y + extent.y});
        body();
    };
    const float middle = middle_end - top;
    constexpr ImGuiWindowFlags kStill = ImGuiWindowFlags_NoScrollbar | ImGuiWindowFlags_NoScrollWithMouse;
    const auto lanes = [&] { draw(panels.lanes, context); };
    const auto atlas = [&] { draw(panels.atlas, context); };
    const auto curves = [&] { draw(panels.curves, context); };
    const auto info = [&] { draw(panels.inspector, context); };
    const auto text = [&] {
        side_by_side ? draw_texts(panels.compare, panels.strip, context) : draw(panels.strip, context);
    };
    if (plan.apart) {
        if (!teaches) pane("lanes", gap, top, left_width, middle, lanes);
        pane("inspector", centre_right + gap, top, right_width, middle, info);
    } else {
        std::vector<Turn> turns = {{SidePane::lanes, "Lanes", 0, lanes}};
        if (!plan.column) {
            turns.push_back({SidePane::atlas, "Atlas", ImGuiWindowFlags_NoScrollbar, atlas});
            turns.push_back({SidePane::curves, "Curves", ImGuiWindowFlags_NoScrollbar, curves});
        }
        turns.push_back({SidePane::info, "Info", 0, info});
        if (!plan.strip) turns.push_back({SidePane::text, "Text", kStill, text});
        pane(
            "side", gap, top, left_width, middle, [&] { draw_turns(context, turns); }, kStill);
    }
    const float n_layers =
        app.run.has_steps() ? static_cast<float>(app.run.history.run().config.n_layers) : 8;
    const float n_heads = app.run.has_steps() ? static_cast<float>(app.run.history.run().config.n_heads) : 8;
    const float n_lanes = static_cast<float>(app.run.lane_editor.n_lanes());
    const float cards_height = (n_lanes * 41 + 78) * s;  // for a projector
    const float atlas_height =
        std::min(teaches ? std::max(middle - cards_height - gap, middle * 0.3f) : middle * 0.58f,
                 (atlas_width - 46 * s) / n_heads * n_layers + 62 * s);
    if (!side_by_side && plan.column) {
        pane("atlas", centre_left, top, atlas_width, atlas_height, atlas, ImGuiWindowFlags_NoScrollbar);
        // For a projector the lanes' cards are here, and the curves only if there is room for both.
        const float below = middle - atlas_height - gap, cards = std::min(below, cards_height);
        const float left_over = teaches ? below - cards - gap : below;
        if (teaches)
            pane("lanes", centre_left, top + atlas_height + gap, atlas_width,
                 left_over < 150 * s ? below : cards, lanes);
        if (!teaches || left_over >= 150 * s)
            pane("curves", centre_left, middle_end - left_over, atlas_width, left_over, curves,
                 ImGuiWindowFlags_NoScrollbar);
    }
    if (side_by_side)
        pane(
            "compare", centre_left, top, centre, middle, [&] { draw(panels.compare, context); }, kStill);
    else
        pane(
            "heatmap", centre_left + atlas_width + gap, top, centre - atlas_width - gap, middle,
            [&] { draw(panels.heatmap, context); }, kStill);
    if (plan.strip)
        pane("strip", gap, middle_end + gap, size.x - 2 * gap, bottom_height - time_height - gap, text,
             kStill);
    pane(
        "time", gap, bottom - time_height, size.x - 2 * gap, time_height - gap / 2,
        [&] { draw(panels.time, context); }, kStill);
    ImGui::SetCursorScreenPos({gap + 4 * s, bottom + std::round(3 * s)});
    draw_status(context);

    // Draggable borders.
    const auto drag = [&](const char* id, bool vertical, ImVec2 at, float length, std::string_view side,
                          float now, float sign) {
        const float by = splitter(id, vertical, at, length, gap);
        mark_item(context, fmt::format("splitter {}", id));
        if (by != 0) run(context, fmt::format("view.size {} {}", side, (now + sign * by) / s));
    };
    if (!teaches || !plan.apart) drag("left|", true, {gap + left_width, top}, middle, "left", left_width, 1);
    if (!side_by_side && plan.column)
        drag("atlas|", true, {centre_left + atlas_width, top}, middle, "atlas", atlas_width, 1);
    if (plan.apart) drag("right|", true, {centre_right, top}, middle, "right", right_width, -1);
    if (plan.strip) drag("bottom-", false, {gap, middle_end}, size.x - 2 * gap, "bottom", bottom_height, -1);
    ImGui::End();
    draw(panels.dialogs, context);
    draw_token_menu(context);
}

}  // namespace keyhole
