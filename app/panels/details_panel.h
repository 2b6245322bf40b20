/// Draws the column of details: the doctor's line, the next tokens (next_tokens.h), the picked cell
/// (cell_view.h), and the memory of all lanes.
/// Window thread, within a frame; knows nothing of the engine's thread.
#pragma once

#include "app/panels/panel.h"

namespace keyhole {

struct DetailsPanel {};

void draw(DetailsPanel& panel, const PanelContext& context);

}  // namespace keyhole
