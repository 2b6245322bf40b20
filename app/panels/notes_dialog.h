/// Draws the dialog with bookmarks, notes and recent files.
/// Window thread, within a frame; writes no files itself.
#pragma once

#include "app/panels/panel.h"

namespace keyhole {

/// opening: the field for the notes takes the keys.
void draw_notes(const PanelContext& context, bool opening);

}  // namespace keyhole
