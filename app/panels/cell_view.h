/// What is known of one cell: the query's row, the key's token, their attention, the score with its threshold and rank, what the cache
/// holds of the token, and what can be done with it. Part of the inspector; window thread.
#pragma once

#include "app/panels/panel.h"

namespace keyhole {

void draw_cell_view(const PanelContext& context);

/// Commands on the picked token, as a menu at the pointer; opened by shared.open_token_menu. Once a frame, last.
void draw_token_menu(const PanelContext& context);

}  // namespace keyhole
