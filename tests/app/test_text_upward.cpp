// Text that is written upward, without a window: no character is left out.
#include "app/gl/imgui_compat.h"
#include "app/panels/panel.h"

#include <gtest/gtest.h>

namespace keyhole::test_text_upward {
namespace {

/// Returns how many corners a text has that is written upward from a place of a window of 200 x 200 pixels.
int n_corners(ImVec2 at, const char* text) {
    ImGuiContext* const context = ImGui::CreateContext();
    ImGuiIO& io = ImGui::GetIO();
    io.IniFilename = nullptr;
    io.DisplaySize = {200, 200};
    io.Fonts->AddFontDefault();
    imgui_compat::build_fonts();
    ImGui::NewFrame();
    ImDrawList& list = *ImGui::GetForegroundDrawList();
    const int before = list.VtxBuffer.Size;
    text_upward(list, at, IM_COL32_WHITE, text);
    const int n = list.VtxBuffer.Size - before;
    ImGui::EndFrame();
    ImGui::DestroyContext(context);
    return n;
}

/// Level, "forget" would end 35 pixels beyond the window's right edge, or below its lower one.
TEST(TextUpward, KeepsAllCharactersAtAnEdge) {
    EXPECT_EQ(n_corners({100, 100}, "forget"), 4 * 6);
    EXPECT_EQ(n_corners({193, 100}, "forget"), 4 * 6);
    EXPECT_EQ(n_corners({100, 230}, "forget"), 4 * 6);
}

}  // namespace
}  // namespace keyhole::test_text_upward
