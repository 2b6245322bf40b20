/// A measure of all lanes against the row. Window thread.
#pragma once

#include "app/panels/panel.h"

namespace keyhole {

/// Draws into `room` at the cursor, a legend with the values at the shown row below. kind: index into curve_kinds().
void draw_measure_plot(const PanelContext& context, int kind, ImVec2 room, bool legend);

/// Definition of a measure, for tooltips: what it says, equation and unit.
std::string measure_tooltip(std::string_view name);

}  // namespace keyhole
