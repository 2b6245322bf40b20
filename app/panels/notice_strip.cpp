#include "app/panels/notice_strip.h"

#include "app/panels/lesson_panel.h"

#include <algorithm>

namespace keyhole {

NoticeStrip::NoticeStrip(const PanelContext& context, const char* id) : context_(context) {
    const ImVec2 display = ImGui::GetIO().DisplaySize;
    const float width = std::max(display.x - lesson_width(context), context.px(200));
    // The first strip is the lowest. In the frame in which one appears, it grows upward from the edge.
    ImGui::SetNextWindowPos({0, display.y - context.shared.strips_drawn}, ImGuiCond_Always, {0, 1});
    ImGui::SetNextWindowSizeConstraints({width, 0}, {width, display.y / 2});
    const ScopedVar rounding(ImGuiStyleVar_WindowRounding, 0);
    ImGui::Begin(id, nullptr,
                 ImGuiWindowFlags_NoDecoration | ImGuiWindowFlags_NoMove | ImGuiWindowFlags_AlwaysAutoResize |
                     ImGuiWindowFlags_NoSavedSettings | ImGuiWindowFlags_NoFocusOnAppearing);
}

void NoticeStrip::text(const std::string& text) {
    ImGui::AlignTextToFramePadding();
    const ScopedTextWrap wrap(ImGui::GetCursorPosX() + ImGui::GetContentRegionAvail().x);
    ImGui::TextUnformatted(text.c_str());
}

void NoticeStrip::next(float width) {
    const bool one_line = ImGui::GetItemRectSize().y < 1.5f * ImGui::GetFrameHeight();
    const float left = ImGui::GetItemRectMax().x + ImGui::GetStyle().ItemSpacing.x;
    if (one_line && left + width <= ImGui::GetWindowPos().x + ImGui::GetWindowContentRegionMax().x)
        ImGui::SameLine();
}

bool NoticeStrip::button(const char* label) {
    next(ImGui::CalcTextSize(label).x + 2 * ImGui::GetStyle().FramePadding.x);
    return ImGui::Button(label);
}

NoticeStrip::~NoticeStrip() {
    const ImVec2 at = ImGui::GetWindowPos(), size = ImGui::GetWindowSize();
    mark_area(context_, "notice", at, {at.x + size.x, at.y + size.y});
    context_.shared.strips_drawn += size.y;
    ImGui::End();
}

}  // namespace keyhole
