/// Draws the status line at the lower edge: what the engine does and how far it is, the last message, and at
/// the right end the numbers of tokens, the speed and the backend. Window thread, within a frame.
#pragma once

#include "app/panels/panel.h"

namespace keyhole {

void draw_status_line(const PanelContext& context);

}  // namespace keyhole
