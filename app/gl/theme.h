/// Defines fonts, colours and spacing of the window. Window thread, between frames (fonts) or within them
/// (colours).
#pragma once

#include "app/view/glyphs.h"
#include "engine/figure/colormap.h"

#include <imgui.h>

#include <array>
#include <span>
#include <string>

namespace keyhole {

struct Fonts {
    ImFont* book = nullptr;
    ImFont* bold = nullptr;
    ImFont* small = nullptr;
    ImFont* large = nullptr;  ///< of lessons, which are read from a distance
};

namespace theme {
inline constexpr ImU32 rgb(int r, int g, int b, int a = 255) {
    return IM_COL32(r, g, b, a);
}
inline constexpr ImU32 opaque(Rgb8 color) {
    return IM_COL32(color.r, color.g, color.b, 255);
}
/// One theme. Texts have a contrast of at least 4.5:1 on each background (WCAG 2.2, success criterion 1.4.3).
struct Colors {
    ImU32 window, panel, card, card_focused;  ///< backgrounds
    ImU32 inset;                              ///< background of plots
    ImU32 line, grid;                         ///< borders; lines in plots
    ImU32 text, dim, faint;
    ImU32 accent;  ///< links and keys
    ImU32 warm;    ///< watched words, picks, thresholds, evictions
    ImU32 fault, good;
    ImU32 lit, lit_hovered, on_lit;                      ///< a button that is switched on
    ImU32 run, run_hovered, stop, stop_hovered, on_run;  ///< the run button
    ImU32 held, gone;                                    ///< whether a head holds a token
    ImU32 kept_by_none, kept_by_all;                     ///< ends of a token's background by kept share
    std::array<ImU32, 8> lanes;  ///< need no red-green vision (Okabe and Ito, for the background)
};
const Colors& colors_on(Background background);
/// Returns the theme that apply_theme() has set.
const Colors& colors();
/// Texts on cells of a colour table: on its bright part, and on the rest.
inline constexpr ImU32 kOnBright = rgb(16, 20, 24), kOnDark = rgb(226, 229, 235);

/// look: LaneOnShow::look of a lane.
ImU32 lane_color(int look);
/// Returns the dashes of a lane's lines, so that lines differ without colour too: lengths of stroke and gap
/// in unscaled pixels, alternately; empty: a solid line.
std::span<const float> lane_dash(int look);
ImU32 faded(ImU32 color, float alpha);
}  // namespace theme

/// Loads DejaVu Sans through fontconfig at the scale, and further characters that the texts need from any
/// system font. Falls back to ImGui's own font. Call before the first frame, and after the scale or the
/// needed characters changed (then rebuild the font texture).
Fonts load_fonts(float scale, Glyphs& glyphs);
void apply_theme(float scale, Background background);

}  // namespace keyhole
