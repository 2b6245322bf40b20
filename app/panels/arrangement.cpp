#include "app/panels/arrangement.h"

#include "app/panels/cell_view.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

namespace keyhole {

namespace {

/// A pane of a group that shares one place; one pane of the group is visible.
struct Tab {
    SidePane pane;
    const char* label;
    ImGuiWindowFlags flags;
    std::function<void()> draw;
};

/// The places of the panes, in unscaled pixels: lanes and atlas left; text and answers above the rest; the
/// focused head beside details and curves. Where the window has no room for all, panes share a place.
struct Plan {
    bool right_column = true;    ///< details and curves; false: they share a place in the left column
    bool atlas_below = true;     ///< the lanes; false: the atlas shares a place with them
    bool curves_below = true;    ///< the details; false: the curves share a place with them
    bool answers_beside = true;  ///< the text; false: below it
    float left = 0, right = 0;
    float text = 0;  ///< height of text and answers; 0: they share a place in the left column
    float atlas = 0, curves = 0;
};

constexpr float kGap = 6, kTimeHeight = 46;

/// looked: the pane that a lesson looks at.
Plan plan_of(const ViewState& view, bool large, std::string_view looked, float wide, float high,
             float answers) {
    constexpr float kFocus = 350, kPair = 560;  // least widths of the focused head, and of two beside
    const bool compares = view.arrangement == Arrangement::compare;
    const auto chosen = [](float by_user, float by_window) { return by_user > 0 ? by_user : by_window; };
    const float middle = high - 92 - kTimeHeight - kGap;  // without menu, buttons, time bar and status line
    Plan plan;
    plan.left = chosen(view.left_width, std::clamp(wide * 0.19f, 236.0f, 330.0f));
    plan.right = chosen(view.right_width, std::clamp(wide * 0.22f, 252.0f, 380.0f));
    const float beside = wide - plan.left - 4 * kGap;
    if (view.right_width == 0 && (looked == "measures" || looked == "doctor" || looked == "details"))
        plan.right = std::max(plan.right, std::min(wide * 0.42f, beside - kFocus));
    // Two maps side by side need the room of a third column when a class looks at them.
    if (beside - plan.right < (compares ? kPair : kFocus) || (compares && looked == "compare")) {
        plan.right_column = plan.atlas_below = plan.curves_below = false;
        plan.right = -kGap;
        plan.left = std::min(plan.left, std::max(wide - kFocus, wide * 0.45f));
    }
    const float words = wide - plan.left - 3 * kGap;
    plan.answers_beside = words >= (large ? 480 : 620);
    const float by_itself =
        plan.answers_beside ? std::clamp(answers, 130.0f, 230.0f) : std::clamp(answers + 90, 190.0f, 270.0f);
    // For a projector the answers come first.
    const float least = large ? 330 : 400;
    const bool needs_height = looked == "compare" && middle < 520;  // two rows of maps
    if (middle >= least && !needs_height)
        plan.text = std::min(chosen(view.text_height, by_itself), middle - 140);
    const float below = middle - plan.text - kGap;
    plan.atlas_below = plan.atlas_below && middle >= 420;
    plan.curves_below = plan.curves_below && below >= 380;
    const float curves = looked == "measures" ? below * 0.7f : std::clamp(below * 0.42f, 150.0f, 300.0f);
    plan.curves = std::min(chosen(view.curves_height, curves), below - 120);
    return plan;
}

void draw_tab_buttons(const PanelContext& context, const std::vector<Tab>& tabs, const Tab& on) {
    const ScopedFont font(context.fonts.small);
    const ScopedVar padding(ImGuiStyleVar_FramePadding, {context.px(5), context.px(3)});
    for (const Tab& tab : tabs) {
        if (&tab != &tabs.front()) next_to(tab.label, context.px(2));
        const std::string_view name = side_pane_name(tab.pane);
        if (lit_button(tab.label, &tab == &on)) run(context, fmt::format("view.side {}", name));
        mark_item(context, fmt::format("side {}", name));
        action_tooltip(context, "view.side");
    }
}

/// Draws a row of pane names, and the chosen pane below it.
void draw_tabs(const PanelContext& context, const std::vector<Tab>& tabs) {
    const SidePane side = context.app.view.side;
    const auto shown = std::find_if(tabs.begin(), tabs.end(), [&](const Tab& t) { return t.pane == side; });
    const Tab& on = shown == tabs.end() ? tabs.front() : *shown;
    draw_tab_buttons(context, tabs, on);
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

/// Draws the text beside, or above, the lanes' answers.
void draw_story(Panels& panels, const PanelContext& context, const Plan& plan) {
    const bool side_by_side = context.app.view.arrangement == Arrangement::compare;
    const ImVec2 at = ImGui::GetCursorScreenPos(), room = ImGui::GetContentRegionAvail();
    const float gap = context.px(10);
    const ImVec2 text =
        plan.answers_beside
            ? ImVec2(std::floor((room.x - gap) * (lesson_looks_at(context) == "answers" ? 0.42f : 0.57f)),
                     room.y)
            : ImVec2(room.x, std::floor(std::max(room.y * 0.5f, room.y - answers_height(context))));
    constexpr ImGuiWindowFlags kStill = ImGuiWindowFlags_NoScrollbar | ImGuiWindowFlags_NoScrollWithMouse;
    {
        const ScopedChild child("text of lane", text, false, kStill);
        mark_area(context, "pane text", at, {at.x + text.x, at.y + text.y});
        side_by_side ? draw_texts(panels.compare, panels.text, context) : draw(panels.text, context);
    }
    ImGui::SetCursorScreenPos(plan.answers_beside ? ImVec2(at.x + text.x + gap, at.y)
                                                  : ImVec2(at.x, at.y + text.y + context.px(4)));
    const ScopedChild child("own answers", {0, 0}, false, kStill);
    const ImVec2 corner = ImGui::GetWindowPos(), extent = ImGui::GetWindowSize();
    mark_area(context, "pane answers", corner, {corner.x + extent.x, corner.y + extent.y});
    draw(panels.answers, context);
}

}  // namespace

void lay_out(Panels& panels, const PanelContext& context) {
    const AppState& app = context.app;
    const ViewState& view = app.view;
    ImVec2 size = ImGui::GetIO().DisplaySize;
    size.x -= lesson_width(context);
    const float s = context.scale, gap = std::round(kGap * s);
    const bool side_by_side = view.arrangement == Arrangement::compare;
    const float status_height = std::round(22 * s), time_height = std::round(kTimeHeight * s);

    begin_whole_window(size, gap);
    const std::string_view looked = lesson_looks_at(context);
    const float words = looked == "text" ? 230 : 0;
    const Plan plan = plan_of(view, app.for_projector(), looked, size.x / s, size.y / s,
                              std::max(answers_height(context) / s, words));
    // The pane that a class looks at has no small print.
    Fonts readable = context.fonts;
    readable.small = readable.book;
    const PanelContext from_afar{
        app,           context.run_action, context.painters, readable, context.shared,
        context.scale, context.frame_scale};
    const auto in = [&](std::string_view pane) -> const PanelContext& {
        const bool fits = pane != "compare" || size.x >= 900 * s;  // two heat maps and their legends
        return looked == pane && fits ? from_afar : context;
    };
    draw_menus(panels.top, context);
    draw(panels.top, context);

    const float left_width = std::round(plan.left * s), right_width = std::round(plan.right * s),
                text_height = std::round(plan.text * s);
    const float top = ImGui::GetCursorScreenPos().y + std::round(2 * s);
    const float bottom = size.y - status_height;          // of the time bar
    const float middle_end = bottom - time_height - gap;  // of the columns
    const float centre_left = gap + left_width + gap, centre_right = size.x - gap - right_width - gap;
    const float below_text = plan.text > 0 ? top + text_height + gap : top;
    const auto pane = [&](const char* id, float x, float y, float width, float height, auto&& body,
                          ImGuiWindowFlags flags = 0) {
        ImGui::SetCursorScreenPos({std::round(x), std::round(y)});
        const ScopedChild child(id, {std::round(width), std::round(height)}, false,
                                ImGuiWindowFlags_AlwaysUseWindowPadding | flags);
        const ImVec2 min = ImGui::GetWindowPos(), extent = ImGui::GetWindowSize();
        mark_area(context, fmt::format("pane {}", id), min, {min.x + extent.x, min.y + extent.y});
        body();
    };
    constexpr ImGuiWindowFlags kStill = ImGuiWindowFlags_NoScrollbar | ImGuiWindowFlags_NoScrollWithMouse;
    const Tab lanes{SidePane::lanes, "Lanes", 0, [&] { draw(panels.lanes, in("lanes")); }};
    const Tab atlas{SidePane::atlas, "Atlas", ImGuiWindowFlags_NoScrollbar,
                    [&] { draw(panels.atlas, in("atlas")); }};
    const Tab curves{SidePane::curves, "Curves", ImGuiWindowFlags_NoScrollbar,
                     [&] { draw(panels.curves, in("measures")); }};
    const Tab details{SidePane::details, "Details", 0,
                      [&] { draw(panels.details, in(looked == "doctor" ? "doctor" : "details")); }};
    const Tab text{SidePane::text, "Text", kStill,
                   [&] { draw_story(panels, in(looked == "answers" ? "answers" : "text"), plan); }};
    const auto tabs_in = [&](const char* id, std::vector<Tab> tabs, float x, float y, float width,
                             float height) {
        pane(
            id, x, y, width, height, [&] { draw_tabs(context, tabs); }, kStill);
    };

    // Left: the lanes, and the atlas below them as high as its squares need.
    const float middle = middle_end - top;
    float atlas_height = 0;
    if (plan.atlas_below) {
        const ModelConfig* model = app.run.has_steps() ? &app.run.history.run().config : nullptr;
        const float n_layers = model != nullptr ? static_cast<float>(model->n_layers) : 8,
                    n_heads = model != nullptr ? static_cast<float>(model->n_heads) : 8;
        const float squares = (left_width - 46 * s) / n_heads * n_layers + 62 * s;
        atlas_height = std::round(std::clamp(view.atlas_height > 0 ? view.atlas_height * s
                                             : looked == "atlas"   ? squares
                                                                   : std::min(squares, middle * 0.5f),
                                             100 * s, middle - 120 * s));
        pane("lanes", gap, top, left_width, middle - atlas_height - gap, lanes.draw, lanes.flags);
        pane("atlas", gap, middle_end - atlas_height, left_width, atlas_height, atlas.draw, atlas.flags);
    } else {
        std::vector<Tab> tabs = {lanes, atlas};
        if (!plan.right_column) tabs.insert(tabs.end(), {curves, details});
        if (plan.text == 0) tabs.push_back(text);
        tabs_in("side", std::move(tabs), gap, top, left_width, middle);
    }

    if (plan.text > 0)
        pane(
            "text", centre_left, top, size.x - gap - centre_left, text_height,
            [&] { draw_story(panels, in(looked == "answers" ? "answers" : "text"), plan); }, kStill);
    const float below = middle_end - below_text, centre = centre_right - centre_left;
    if (side_by_side)
        pane(
            "compare", centre_left, below_text, centre, below, [&] { draw(panels.compare, in("compare")); },
            kStill);
    else
        pane(
            "heatmap", centre_left, below_text, centre, below, [&] { draw(panels.heatmap, in("head")); },
            kStill);
    const float curves_height = std::round(plan.curves * s);
    context.shared.curves_below = plan.right_column && plan.curves_below;
    if (plan.right_column && plan.curves_below) {
        pane("details", centre_right + gap, below_text, right_width, below - curves_height - gap,
             details.draw, details.flags);
        pane("curves", centre_right + gap, middle_end - curves_height, right_width, curves_height,
             curves.draw, curves.flags);
    } else if (plan.right_column) {
        tabs_in("details", {details, curves}, centre_right + gap, below_text, right_width, below);
    }
    pane(
        "time", gap, bottom - time_height, size.x - 2 * gap, time_height - gap / 2,
        [&] { draw(panels.time, in("time")); }, kStill);
    ImGui::SetCursorScreenPos({gap + 4 * s, bottom + std::round(3 * s)});
    draw_status_line(context);

    // Draggable borders.
    const auto drag = [&](const char* id, bool vertical, ImVec2 at, float length, std::string_view part,
                          float now, float sign) {
        const float by = splitter(id, vertical, at, length, gap);
        mark_item(context, fmt::format("splitter {}", part));
        if (by != 0) run(context, fmt::format("view.size {} {}", part, (now + sign * by) / s));
    };
    drag("left|", true, {gap + left_width, top}, middle, "left", left_width, 1);
    if (plan.atlas_below)
        drag("atlas-", false, {gap, middle_end - atlas_height - gap}, left_width, "atlas", atlas_height, -1);
    if (plan.text > 0)
        drag("text-", false, {centre_left, top + text_height}, size.x - gap - centre_left, "text",
             text_height, 1);
    if (plan.right_column) drag("right|", true, {centre_right, below_text}, below, "right", right_width, -1);
    if (plan.right_column && plan.curves_below)
        drag("curves-", false, {centre_right + gap, middle_end - curves_height - gap}, right_width, "curves",
             curves_height, -1);
    ImGui::End();
    draw(panels.lesson, context);
    draw(panels.dialogs, context);
    draw_token_menu(context);
}

}  // namespace keyhole
