/// The strip beside an answer: a tick or a cross for each value of an option that was tried. Window thread.
#pragma once

#include "app/panels/panel.h"

namespace keyhole {

inline constexpr const char* kWidestStripQuestion = "which recent window?";
/// Returns the height of a strip with its sentence; 0: strips are off.
float strip_height(const PanelContext& context);
/// Draws a lane's strip in this width, and the sentence below it. A click on a cell gives the lane its value.
void draw_strip(const PanelContext& context, int lane, ImVec2 at, float width);
/// Returns the width of a strip in one line of text; 0: the lane has none.
float strip_width(const PanelContext& context, int lane);
/// Draws a strip within a line, without its sentence.
void draw_strip_in_line(const PanelContext& context, int lane, ImVec2 at, float height);
/// Draws the list of the options that strips can try.
void draw_strip_choice(const PanelContext& context);

}  // namespace keyhole
