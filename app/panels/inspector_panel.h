/// Shows the picked cell, and the next tokens and memory of all lanes.
/// Window thread, within a frame; knows nothing of the engine's thread.
#pragma once

#include "app/panels/panel.h"

namespace keyhole {

struct InspectorPanel {};

void draw(InspectorPanel& panel, const PanelContext& context);

}  // namespace keyhole
