/// A measure of all lanes against the row. Window thread.
#pragma once

#include "app/panels/panel.h"

#include <span>

namespace keyhole {

/// Values against the row, one a record of the history, NaN where there is none.
struct RowLine {
    std::span<const float> values;
    ImU32 color = 0;
    bool in_focus = false;
};
/// Draws them into `room` at the cursor with axes of their own; the plot is the last item. Returns where to go on below it; nothing to
/// draw: `nothing` says so, and there is no item. Needs an ImGui ID of its own.
std::optional<ImVec2> draw_row_lines(const PanelContext& context, std::span<const RowLine> lines,
                                     bool logarithmic, const char* nothing, ImVec2 room);

/// Draws into `room` at the cursor, a legend with the values at the shown row below. kind: index into curve_kinds().
void draw_measure_plot(const PanelContext& context, int kind, ImVec2 room, bool legend);

/// Definition of a measure, for tooltips: what it says, equation and unit.
std::string measure_tooltip(std::string_view name);

}  // namespace keyhole
