/// Bookmarks and notes of the run, and the files that were open lately. Window thread.
#pragma once

#include "app/panels/panel.h"

namespace keyhole {

void draw_notes(const PanelContext& context);

}  // namespace keyhole
