/// Draws the strip about the CUDA device at the bottom: the proof and its progress, and then what came of it,
/// with a button that starts the run again on the device. Window thread, within a frame.
#pragma once

#include "app/panels/panel.h"

namespace keyhole {

/// Draws nothing where there is nothing to say.
void draw_device_strip(const PanelContext& context);

}  // namespace keyhole
