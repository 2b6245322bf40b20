/// Plots a measure of all lanes over the steps.
/// Window thread, within a frame; computes no measures itself.
#pragma once

#include "app/panels/panel.h"

#include <span>

namespace keyhole {

/// One line of values over the steps: one value a record of the history, NaN if there is none.
struct RowLine {
    std::span<const float> values;
    int lane = -1;  ///< gives colour, dashes and the number at the line's end; -1: a line of all lanes
    bool in_focus = false;
};
/// Draws lines, or means of steps where there are too many, into `room` at the cursor, with their own axes;
/// the plot is the last item. Returns the position below it. If there is nothing to draw, shows the text
/// `nothing` and submits no item. Needs an ImGui ID of its own.
std::optional<ImVec2> draw_row_lines(const PanelContext& context, std::span<const RowLine> lines,
                                     bool logarithmic, const char* nothing, ImVec2 room);

/// Plots a measure into `room` at the cursor, with a legend of the values at the shown step below. kind:
/// index into curve_kinds().
void draw_measure_plot(const PanelContext& context, int kind, ImVec2 room, bool legend);

/// Returns the definition of a measure for tooltips: meaning, equation and unit.
std::string measure_tooltip(std::string_view name);

}  // namespace keyhole
