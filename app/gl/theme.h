/// Defines fonts, colours and spacing of the window. Window thread, between frames (fonts) or within them
/// (colours).
#pragma once

#include "app/view/glyphs.h"

#include <imgui.h>

#include <string>

namespace keyhole {

struct Fonts {
    ImFont* book = nullptr;
    ImFont* bold = nullptr;
    ImFont* small = nullptr;
};

namespace theme {
inline constexpr ImU32 rgb(int r, int g, int b, int a = 255) {
    return IM_COL32(r, g, b, a);
}
/// Texts have a contrast of at least 4.5:1 on each ground (WCAG 2.2, success criterion 1.4.3).
inline constexpr ImU32 kWindow = rgb(24, 26, 31), kPanel = rgb(30, 33, 39), kCard = rgb(38, 42, 50),
                       kCardFocused = rgb(44, 50, 61), kLine = rgb(54, 59, 70), kText = rgb(222, 225, 231),
                       kDim = rgb(168, 174, 186), kFaint = rgb(150, 156, 168), kAccent = rgb(92, 163, 232),
                       kWarm = rgb(238, 150, 34), kFault = rgb(244, 122, 115), kGood = rgb(126, 196, 148);
/// Returns one of eight colours that need no red-green vision (Okabe and Ito, made lighter for the dark
/// ground).
ImU32 lane_color(int lane);
ImU32 faded(ImU32 color, float alpha);
}  // namespace theme

/// Loads DejaVu Sans through fontconfig at the scale, and further characters that the texts need from any
/// system font. Falls back to ImGui's own font. Call before the first frame, and after the scale or the
/// needed characters changed (then rebuild the font texture).
Fonts load_fonts(float scale, Glyphs& glyphs);
void apply_theme(float scale);

}  // namespace keyhole
