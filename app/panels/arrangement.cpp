#include "app/panels/arrangement.h"

#include "app/panels/cell_view.h"

#include <algorithm>
#include <cmath>

namespace keyhole {

void lay_out(Panels& panels, const PanelContext& context) {
    AppState& app = context.app;
    ViewState& view = app.view;
    const ImVec2 size = ImGui::GetIO().DisplaySize;
    const float s = context.scale, gap = std::round(6 * s);
    const float wide = size.x / s;
    const bool side_by_side = view.arrangement == Arrangement::compare,
               teaches = view.arrangement == Arrangement::teach;
    const float left_width =
        teaches
            ? -gap
            : std::round((view.left_width > 0 ? view.left_width : std::clamp(wide * 0.185f, 240.0f, 320.0f)) *
                         s);
    const float right_width =
        std::round((view.right_width > 0 ? view.right_width : std::clamp(wide * 0.2f, 252.0f, 350.0f)) * s);
    const float bottom_height = std::round(
        (view.bottom_height > 0 ? view.bottom_height
                                : std::clamp(size.y / s * (teaches ? 0.25f : 0.2f), 162.0f, 260.0f)) *
        s);
    const float time_height = std::round(46 * s), status_height = std::round(22 * s);

    ImGui::SetNextWindowPos({0, 0});
    ImGui::SetNextWindowSize(size);
    ImGui::PushStyleVar(ImGuiStyleVar_WindowRounding, 0);
    ImGui::PushStyleVar(ImGuiStyleVar_WindowBorderSize, 0);
    ImGui::PushStyleVar(ImGuiStyleVar_WindowPadding, {gap, gap});
    ImGui::Begin("Keyhole", nullptr,
                 ImGuiWindowFlags_NoTitleBar | ImGuiWindowFlags_NoResize | ImGuiWindowFlags_NoMove |
                     ImGuiWindowFlags_MenuBar | ImGuiWindowFlags_NoBringToFrontOnFocus |
                     ImGuiWindowFlags_NoScrollbar | ImGuiWindowFlags_NoScrollWithMouse |
                     ImGuiWindowFlags_NoBackground);  // the frame is cleared to it: a layer less to blend
    ImGui::PopStyleVar(3);
    draw_menus(panels.top, context);
    draw(panels.top, context);

    const float top = ImGui::GetCursorScreenPos().y + std::round(2 * s);
    const float bottom = size.y - status_height;
    const float middle_end = bottom - bottom_height - gap;
    const float centre_left = gap + left_width + gap, centre_right = size.x - gap - right_width - gap;
    const float centre = centre_right - centre_left;
    const float atlas_width =
        std::clamp(std::round((view.atlas_width > 0
                                   ? view.atlas_width
                                   : std::clamp(centre / s * 0.37f, teaches ? 270.0f : 230.0f, 420.0f)) *
                              s),
                   120 * s, std::max(centre - 200 * s, 121 * s));
    const auto pane = [&](const char* id, float x, float y, float width, float height, auto&& body,
                          ImGuiWindowFlags flags = 0) {
        ImGui::SetCursorScreenPos({std::round(x), std::round(y)});
        ImGui::BeginChild(id, {std::round(width), std::round(height)}, false,
                          ImGuiWindowFlags_AlwaysUseWindowPadding | flags);
        body();
        ImGui::EndChild();
    };
    const float middle = middle_end - top;
    if (!teaches) pane("lanes", gap, top, left_width, middle, [&] { draw(panels.lanes, context); });
    constexpr ImGuiWindowFlags kStill = ImGuiWindowFlags_NoScrollbar | ImGuiWindowFlags_NoScrollWithMouse;
    if (side_by_side)
        pane(
            "compare", centre_left, top, centre, middle, [&] { draw(panels.compare, context); }, kStill);
    const float n_layers = app.has_run() ? static_cast<float>(app.history.run().config.n_layers) : 8;
    const float n_heads = app.has_run() ? static_cast<float>(app.history.run().config.n_heads) : 8;
    const float atlas_height =
        std::min(middle * (teaches ? 0.38f : 0.58f), (atlas_width - 46 * s) / n_heads * n_layers + 62 * s);
    if (!side_by_side) {
        pane(
            "atlas", centre_left, top, atlas_width, atlas_height, [&] { draw(panels.atlas, context); },
            ImGuiWindowFlags_NoScrollbar);
        // For a projector the lanes' cards stand here, and the curves only where there is room for both.
        const float below = middle - atlas_height - gap, n_lanes = static_cast<float>(app.desk.n_lanes());
        const float cards = std::min(below, (n_lanes * 64 + 76) * s);
        const float left_over = teaches ? below - cards - gap : below;
        if (teaches)
            pane("lanes", centre_left, top + atlas_height + gap, atlas_width,
                 left_over < 150 * s ? below : cards, [&] { draw(panels.lanes, context); });
        if (!teaches || left_over >= 150 * s)
            pane(
                "curves", centre_left, middle_end - left_over, atlas_width, left_over,
                [&] { draw(panels.curves, context); }, ImGuiWindowFlags_NoScrollbar);
        pane(
            "heatmap", centre_left + atlas_width + gap, top, centre - atlas_width - gap, middle,
            [&] { draw(panels.heatmap, context); }, kStill);
    }
    pane("inspector", centre_right + gap, top, right_width, middle, [&] { draw(panels.inspector, context); });
    pane(
        "strip", gap, middle_end + gap, size.x - 2 * gap, bottom_height - time_height - gap,
        [&] { side_by_side ? draw_texts(context) : draw(panels.strip, context); }, kStill);
    pane(
        "time", gap, bottom - time_height, size.x - 2 * gap, time_height - gap / 2,
        [&] { draw(panels.time, context); }, kStill);
    ImGui::SetCursorScreenPos({gap + 4 * s, bottom + std::round(3 * s)});
    draw_status(context);

    // Borders that can be dragged.
    const auto drag = [&](const char* id, bool vertical, ImVec2 at, float length, float& stored, float now,
                          float sign) {
        if (const float by = splitter(id, vertical, at, length, gap); by != 0)
            stored = std::max(100.0f, (now + sign * by) / s);
    };
    if (!teaches) drag("left|", true, {gap + left_width, top}, middle, view.left_width, left_width, 1);
    if (!side_by_side)
        drag("atlas|", true, {centre_left + atlas_width, top}, middle, view.atlas_width, atlas_width, 1);
    drag("right|", true, {centre_right, top}, middle, view.right_width, right_width, -1);
    drag("bottom-", false, {gap, middle_end}, size.x - 2 * gap, view.bottom_height, bottom_height, -1);
    ImGui::End();
    draw(panels.dialogs, context);
    draw_token_menu(context);
}

}  // namespace keyhole
