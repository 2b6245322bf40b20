/// Reads a frame back from what ImGui draws: the texts that stand on the screen and the colour behind them,
/// whatever the panels meant to draw. Window thread, after ImGui::Render() and before the next frame.
#pragma once

#include "app/panels/panel.h"

#include <imgui.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace keyhole {

/// Characters of one colour that follow one another on a line.
struct ScreenText {
    std::string text;
    ImVec2 min, max;  ///< of its glyphs, in window pixels; clipped parts are left out
    ImU32 color = 0;
    float top = 0;     ///< of its line, whatever characters stand there
    float size = 0;    ///< of its type, in window pixels
    bool cut = false;  ///< at the edge of its room: a part of a character, or what follows, is not drawn

    /// Returns whether the reader does not see all of it: it is cut, or was shortened to end in "…".
    bool is_short() const { return cut || text.ends_with("…"); }
};

/// Returns the texts in the order in which they are drawn.
std::vector<ScreenText> screen_texts(const ImDrawData& frame);

/// Returns the name of the smallest pane that holds a text; "": none.
std::string pane_of(const ScreenText& text, const PanelShared& shared);

/// Returns the lines of each pane from top to bottom. Texts that stand beside each other are joined by two
/// blanks.
std::map<std::string, std::vector<std::string>> lines_of_panes(std::vector<ScreenText> texts,
                                                               const PanelShared& shared);

/// Returns the colour of the shape that is drawn last over a place, texts and pictures left out; nullopt:
/// none. Edges that are smoothed do not count.
std::optional<ImU32> screen_color(const ImDrawData& frame, ImVec2 at);

}  // namespace keyhole
