/// Draws the list "Next token": the most likely next tokens of the lanes, a column a lane and a line a rank.
/// A click on a token makes the next step consume it. Window thread, within a frame.
#pragma once

#include "app/panels/panel.h"

namespace keyhole {

void draw_next_tokens(const PanelContext& context);

}  // namespace keyhole
