/// The watched span: its retained share in every lane against the row, with marks where the answer was lost. Window thread.
#pragma once

#include "app/panels/panel.h"

namespace keyhole {

/// In the room that is left.
void draw_span_plot(const PanelContext& context);

}  // namespace keyhole
