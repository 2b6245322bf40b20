/// Draws the dialog with bookmarks, notes and recent files.
/// Window thread, within a frame; writes no files itself.
#pragma once

#include "app/panels/panel.h"

namespace keyhole {

void draw_notes(const PanelContext& context);

}  // namespace keyhole
