/// The focused view as a figure for a file, drawn by engine/figure from the data: exact pixels, no GL. Window
/// thread.
#pragma once

#include "app/window/view_state.h"
#include "engine/figure/image.h"
#include "engine/trace/run_history.h"

namespace keyhole {

/// Rows up to the shown one of the focused head in the present mode. lane: index into history.lanes().
Image focus_picture(const RunHistory& history, int lane, const ViewState& view, const ColorScale& scale);

/// The same of what lane a has and lane b has not: see difference_values.
Image difference_picture(const RunHistory& history, int a, int b, const ViewState& view,
                         const ColorScale& scale);

}  // namespace keyhole
