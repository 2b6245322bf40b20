#include "app/panels/arrangement.h"

#include "app/panels/cell_view.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace keyhole {

namespace {

/// The places of the panes, in unscaled pixels: lanes and atlas left; text and answers above the rest; the
/// focused head beside details and curves. Where the window has no room for all, panes share a place.
struct Plan {
    bool right_column = true;    ///< details and curves; false: they share a place in the left column
    bool atlas_below = true;     ///< the lanes; false: the atlas shares a place with them
    bool curves_below = true;    ///< the details; false: the curves share a place with them
    bool answers_beside = true;  ///< the text; false: below it
    float left = 0, right = 0;
    float text = 0;            ///< height of text and answers; 0: they share a place in the left column
    bool words_first = false;  ///< there is room for one of the two: text and answers have the head's place
    float atlas = 0, curves = 0;
};

constexpr float kGap = 6, kTimeHeight = 46;
constexpr ImGuiWindowFlags kStill = ImGuiWindowFlags_NoScrollbar | ImGuiWindowFlags_NoScrollWithMouse;

/// looked: the pane that a lesson looks at.
Plan plan_of(const ViewState& view, bool large, Pane looked, float wide, float high, float answers) {
    constexpr float kFocus = 350, kPair = 560;  // least widths of the focused head, and of two beside
    const bool compares = view.arrangement == Arrangement::compare;
    const auto chosen = [](float by_user, float by_window) { return by_user > 0 ? by_user : by_window; };
    const float middle = high - 92 - kTimeHeight - kGap;  // without menu, buttons, time bar and status line
    Plan plan;
    plan.left = chosen(view.left_width, std::clamp(wide * 0.21f, 236.0f, 340.0f));
    plan.right = chosen(view.right_width, std::clamp(wide * 0.22f, 252.0f, 380.0f));
    const float beside = wide - plan.left - 4 * kGap;
    if (view.right_width == 0 && (looked == Pane::curves || home_of(looked) == Pane::details))
        plan.right = std::max(plan.right, std::min(wide * 0.42f, beside - kFocus));
    // Two maps side by side need the room of a third column when a class looks at them.
    if (beside - plan.right < (compares ? kPair : kFocus) || (compares && looked == Pane::compare)) {
        plan.right_column = plan.atlas_below = plan.curves_below = false;
        plan.right = -kGap;
        plan.left = std::min(plan.left, std::max(wide - kFocus, wide * 0.45f));
    }
    const float words = wide - plan.left - 3 * kGap;
    plan.answers_beside = words >= (large || middle < 400 ? 480 : 620);
    // A class that looks at text or answers sees all lanes.
    const bool at_words = home_of(looked) == Pane::text, beside_each_other = plan.answers_beside;
    const float least_words = beside_each_other ? 130 : 190, most_words = beside_each_other ? 230 : 270,
                wanted = beside_each_other ? answers : answers + (at_words ? 150.0f : 90.0f);
    const float by_itself =
        std::clamp(wanted, least_words, at_words ? std::max(wanted, most_words) : most_words);
    // Question and answers come first.
    const float least = large ? 330 : compares ? 400 : 300;
    const bool needs_height = looked == Pane::compare && middle < 520;  // two rows of maps
    const float for_head = compares || large || view.text_height > 0 ? 140 : 200;
    if (middle >= least && !needs_height)
        plan.text = std::min(chosen(view.text_height, by_itself), std::max(middle - for_head, 130.0f));
    const bool of_head = looked == Pane::heatmap || (looked != Pane::none && home_of(looked) != Pane::text);
    plan.words_first = plan.text == 0 && !compares && !of_head;
    const float below = middle - plan.text - kGap;
    plan.atlas_below = plan.atlas_below && middle >= 420;
    plan.curves_below = plan.curves_below && below >= 380;
    const float curves = looked == Pane::curves ? below * 0.7f : std::clamp(below * 0.42f, 150.0f, 300.0f);
    plan.curves = std::min(chosen(view.curves_height, curves), below - 120);
    return plan;
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
    const bool side_by_side = context.app.view.arrangement == Arrangement::compare,
               in_lesson = lesson_looks_at(context) != Pane::none;
    const ImVec2 at = ImGui::GetCursorScreenPos(), room = ImGui::GetContentRegionAvail();
    const float gap = context.px(10);
    const ImVec2 text =
        plan.answers_beside
            ? ImVec2(std::floor((room.x - gap) * (lesson_looks_at(context) == Pane::answers ? 0.42f : 0.57f)),
                     room.y)
            : ImVec2(room.x, std::floor(std::max(room.y * (in_lesson ? 0.3f : 0.5f),
                                                 room.y - answers_height(panels.answers, context))));
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

/// A rectangle in pixels.
struct Place {
    float x = 0, y = 0, width = 0, height = 0;
};

/// The layout of one frame: the plan in pixels, and what draws the panes.
struct Layout {
    Panels& panels;
    const PanelContext& context;
    const PanelContext& from_afar;  ///< for the pane that a class looks at
    const ViewState& view;
    Pane looked;
    ImVec2 size;  ///< of the window, without the lesson
    float s, gap;
    Plan plan;
    float left_width, right_width, text_height, curves_height;
    float atlas_height = 0;
    float top = 0, bottom = 0, middle_end = 0;  ///< of the columns; bottom: of the time bar

    float time_height() const { return std::round(kTimeHeight * s); }
    float middle() const { return middle_end - top; }
    float centre_left() const { return gap + left_width + gap; }
    float centre_right() const { return size.x - gap - right_width - gap; }
    float below_text() const { return plan.text > 0 ? top + text_height + gap : top; }
    float below() const { return middle_end - below_text(); }
    bool curves_below() const { return plan.right_column && plan.curves_below; }
    /// Returns the context for a pane. The one that a class looks at has no small print.
    const PanelContext& of(Pane pane) const {
        const bool fits = pane != Pane::compare || size.x >= 900 * s;  // two heat maps and their legends
        return home_of(looked) == pane && fits ? from_afar : context;
    }
};

/// How a pane with a place of its own is drawn.
struct PaneContent {
    Pane pane;
    ImGuiWindowFlags flags;
    void (*draw)(const Layout&, const PanelContext&);
};

constexpr std::array kPaneContents = {
    PaneContent{Pane::lanes, 0, [](const Layout& l, const PanelContext& c) { draw(l.panels.lanes, c); }},
    PaneContent{Pane::atlas, ImGuiWindowFlags_NoScrollbar,
                [](const Layout& l, const PanelContext& c) { draw(l.panels.atlas, c); }},
    PaneContent{Pane::curves, ImGuiWindowFlags_NoScrollbar,
                [](const Layout& l, const PanelContext& c) { draw(l.panels.curves, c); }},
    PaneContent{Pane::details, 0, [](const Layout& l, const PanelContext& c) { draw(l.panels.details, c); }},
    PaneContent{Pane::text, kStill,
                [](const Layout& l, const PanelContext& c) { draw_story(l.panels, c, l.plan); }},
    PaneContent{Pane::heatmap, kStill,
                [](const Layout& l, const PanelContext& c) { draw(l.panels.heatmap, c); }},
    PaneContent{Pane::compare, kStill,
                [](const Layout& l, const PanelContext& c) { draw(l.panels.compare, c); }},
    PaneContent{Pane::story, 0, [](const Layout& l, const PanelContext& c) { draw(l.panels.story, c); }},
    PaneContent{Pane::time, kStill, [](const Layout& l, const PanelContext& c) { draw(l.panels.time, c); }},
};

const PaneContent& content_of(Pane pane) {
    return *std::ranges::find(kPaneContents, pane, &PaneContent::pane);
}

/// Draws `body` in a child window at a place, and names the area after it.
template <class Body>
void draw_in_place(const Layout& layout, std::string_view name, const Place& at, ImGuiWindowFlags flags,
                   Body body) {
    ImGui::SetCursorScreenPos({std::round(at.x), std::round(at.y)});
    const ScopedChild child(name.data(), {std::round(at.width), std::round(at.height)}, false,
                            ImGuiWindowFlags_AlwaysUseWindowPadding | flags);
    const ImVec2 min = ImGui::GetWindowPos(), extent = ImGui::GetWindowSize();
    mark_area(layout.context, fmt::format("pane {}", name), min, {min.x + extent.x, min.y + extent.y});
    body();
}

void draw_pane(const Layout& layout, Pane pane, const Place& at) {
    const PaneContent& content = content_of(pane);
    draw_in_place(layout, pane_name(pane), at, content.flags, [&] { content.draw(layout, layout.of(pane)); });
}

void draw_tab_buttons(const PanelContext& context, const std::vector<Pane>& tabs, Pane on) {
    const ScopedFont font(context.fonts.small);
    const ScopedVar padding(ImGuiStyleVar_FramePadding, {context.px(5), context.px(3)});
    for (const Pane tab : tabs) {
        const char* title = pane_row(tab)->title.data();
        if (tab != tabs.front()) next_to(title, context.px(2));
        if (lit_button(title, tab == on)) run(context, fmt::format("view.side {}", pane_name(tab)));
        mark_item(context, fmt::format("side {}", pane_name(tab)));
        action_tooltip(context, "view.side");
    }
}

/// Draws a row of pane names, and the chosen pane below it.
void draw_tabs(const Layout& layout, std::string_view name, const Place& at, const std::vector<Pane>& tabs) {
    draw_in_place(layout, name, at, kStill, [&] {
        const auto chosen = std::ranges::find(tabs, layout.view.side);
        const Pane on = chosen == tabs.end() ? tabs.front() : *chosen;
        draw_tab_buttons(layout.context, tabs, on);
        const PaneContent& content = content_of(on);
        const ScopedChild child(pane_row(on)->title.data(), {0, 0}, false, content.flags);
        const ImVec2 min = ImGui::GetWindowPos(), extent = ImGui::GetWindowSize();
        mark_area(layout.context, fmt::format("pane {}", pane_name(on)), min,
                  {min.x + extent.x, min.y + extent.y});
        content.draw(layout, layout.of(on));
    });
}

/// Returns a height of the atlas at which its cells are squares, if the lanes leave the room.
float atlas_height_of(const Layout& layout) {
    const AppState& app = layout.context.app;
    const float s = layout.s, middle = layout.middle();
    const ModelConfig* model = app.run.has_steps() ? &app.run.history.run().config : nullptr;
    const float n_layers = model != nullptr ? static_cast<float>(model->n_layers) : 8,
                n_heads = model != nullptr ? static_cast<float>(model->n_heads) : 8;
    const float squares = (layout.left_width - 46 * s) / n_heads * n_layers + 62 * s;
    const float height = layout.view.atlas_height > 0   ? layout.view.atlas_height * s
                         : layout.looked == Pane::atlas ? squares
                                                        : std::min(squares, middle * 0.5f);
    return std::round(std::clamp(height, 100 * s, middle - 120 * s));
}

/// The atlas gives way to the lanes where their cards need the room: it becomes lower, or shares the place
/// with them. A height that the user has chosen stays, unless all options of a lane are open.
void make_room_for_lanes(Layout& l) {
    constexpr float kLeast = 150, kLeastAgain = 210;  // apart, since cards wrap otherwise beside a scrollbar
    if (!l.plan.atlas_below || l.looked == Pane::atlas || l.context.app.for_projector()) return;
    if (l.view.atlas_height > 0 && !l.view.advanced) return;
    const float left = l.middle() - l.panels.lanes.wanted - l.gap;
    bool& shares = l.panels.lanes.has_place_of_atlas;
    shares = left < l.atlas_height && left < (shares ? kLeastAgain : kLeast) * l.s;
    if (left >= l.atlas_height) return;
    l.plan.atlas_below = !shares;
    l.atlas_height = std::floor(left);
}

/// Draws the left column: the lanes, and the atlas below them; or panes that share the column.
void draw_left(const Layout& l) {
    if (l.plan.atlas_below) {
        draw_pane(l, Pane::lanes, {l.gap, l.top, l.left_width, l.middle() - l.atlas_height - l.gap});
        draw_pane(l, Pane::atlas, {l.gap, l.middle_end - l.atlas_height, l.left_width, l.atlas_height});
        return;
    }
    std::vector<Pane> tabs = {Pane::lanes, Pane::atlas};
    if (!l.plan.right_column) tabs.insert(tabs.end(), {Pane::curves, Pane::details});
    if (l.plan.text == 0) tabs.push_back(l.plan.words_first ? Pane::heatmap : Pane::text);
    draw_tabs(l, "side", {l.gap, l.top, l.left_width, l.middle()}, tabs);
}

/// Draws the text, and below it the focused head or the lanes side by side.
void draw_middle(const Layout& l) {
    if (l.plan.text > 0)
        draw_pane(l, Pane::text, {l.centre_left(), l.top, l.size.x - l.gap - l.centre_left(), l.text_height});
    const bool side_by_side = l.view.arrangement == Arrangement::compare;
    draw_pane(l,
              l.plan.words_first ? Pane::text
              : side_by_side     ? Pane::compare
                                 : Pane::heatmap,
              {l.centre_left(), l.below_text(), l.centre_right() - l.centre_left(), l.below()});
}

/// Draws the right column: details, and the curves below them or in the same place.
void draw_right(const Layout& l) {
    l.context.shared.curves_below = l.curves_below();
    const float x = l.centre_right() + l.gap;
    if (l.curves_below()) {
        draw_pane(l, Pane::details, {x, l.below_text(), l.right_width, l.below() - l.curves_height - l.gap});
        draw_pane(l, Pane::curves, {x, l.middle_end - l.curves_height, l.right_width, l.curves_height});
    } else if (l.plan.right_column) {
        draw_tabs(l, pane_name(Pane::details), {x, l.below_text(), l.right_width, l.below()},
                  {Pane::details, Pane::curves});
    }
}

/// Draws the story in all the room, beside the lanes where the window is wide enough for both.
void draw_story_only(Layout& l) {
    constexpr float kBoth = 1060;
    l.middle_end = l.bottom;
    const bool with_lanes = l.view.arrangement == Arrangement::story && l.size.x >= kBoth * l.s;
    const float left = with_lanes ? l.centre_left() : l.gap;
    if (with_lanes) draw_pane(l, Pane::lanes, {l.gap, l.top, l.left_width, l.middle()});
    draw_pane(l, Pane::story, {left, l.top, l.size.x - l.gap - left, l.middle()});
    if (!with_lanes) return;
    const float by = splitter("left|", true, {l.gap + l.left_width, l.top}, l.middle(), l.gap);
    mark_plot(l.context, "splitter left");
    if (by != 0) run(l.context, fmt::format("view.size left {}", (l.left_width + by) / l.s));
}

/// Draws the borders that can be dragged.
void draw_borders(const Layout& l) {
    const auto drag = [&](const char* id, bool vertical, ImVec2 at, float length, std::string_view part,
                          float now, float sign) {
        const float by = splitter(id, vertical, at, length, l.gap);
        mark_plot(l.context, fmt::format("splitter {}", part));
        if (by != 0) run(l.context, fmt::format("view.size {} {}", part, (now + sign * by) / l.s));
    };
    drag("left|", true, {l.gap + l.left_width, l.top}, l.middle(), "left", l.left_width, 1);
    if (l.plan.atlas_below)
        drag("atlas-", false, {l.gap, l.middle_end - l.atlas_height - l.gap}, l.left_width, "atlas",
             l.atlas_height, -1);
    if (l.plan.text > 0)
        drag("text-", false, {l.centre_left(), l.top + l.text_height}, l.size.x - l.gap - l.centre_left(),
             "text", l.text_height, 1);
    if (l.plan.right_column)
        drag("right|", true, {l.centre_right(), l.below_text()}, l.below(), "right", l.right_width, -1);
    if (l.curves_below())
        drag("curves-", false, {l.centre_right() + l.gap, l.middle_end - l.curves_height - l.gap},
             l.right_width, "curves", l.curves_height, -1);
}

/// Draws every other arrangement: all panes, with the time below them.
void draw_instrument(Layout& l) {
    if (l.plan.atlas_below) l.atlas_height = atlas_height_of(l);
    make_room_for_lanes(l);
    draw_left(l);
    draw_middle(l);
    draw_right(l);
    draw_pane(l, Pane::time,
              {l.gap, l.bottom - l.time_height(), l.size.x - 2 * l.gap, l.time_height() - l.gap / 2});
    draw_borders(l);
}

}  // namespace

void lay_out(Panels& panels, const PanelContext& context) {
    ImVec2 size = ImGui::GetIO().DisplaySize;
    size.x -= lesson_width(context);
    size.y -= context.shared.strips;
    const float s = context.scale, gap = std::round(kGap * s);
    begin_whole_window(size, gap);
    const Pane looked = lesson_looks_at(context);
    const Plan plan =
        plan_of(context.app.view, context.app.for_projector(), looked, size.x / s, size.y / s,
                std::max(answers_height(panels.answers, context) / s, looked == Pane::text ? 230.0f : 0.0f));
    Fonts readable = context.fonts;
    readable.small = readable.book;
    const PanelContext from_afar{context.app,    context.run_action, context.painters,   readable,
                                 context.shared, context.scale,      context.frame_scale};
    Layout layout{panels,
                  context,
                  from_afar,
                  context.app.view,
                  looked,
                  size,
                  s,
                  gap,
                  plan,
                  std::round(plan.left * s),
                  std::round(plan.right * s),
                  std::round(plan.text * s),
                  std::round(plan.curves * s)};
    draw_menus(panels.top, context);
    draw(panels.top, context);
    layout.top = ImGui::GetCursorScreenPos().y + std::round(2 * s);
    layout.bottom = size.y - std::round(22 * s);  // of the status line
    layout.middle_end = layout.bottom - layout.time_height() - gap;
    context.app.tells_story() ? draw_story_only(layout) : draw_instrument(layout);
    ImGui::SetCursorScreenPos({gap + 4 * s, layout.bottom + std::round(3 * s)});
    draw_status_line(context);
    ImGui::End();
    draw(panels.lesson, context);
    draw(panels.dialogs, context);
    draw_token_menu(context);
}

}  // namespace keyhole
