/// Draws the facts about one cell, as part of the details: the query's step, the key's token, their
/// attention, the score with its threshold and rank, what the cache holds of the token, and the commands on
/// it. Window thread.
#pragma once

#include "app/panels/panel.h"

namespace keyhole {

void draw_cell_view(const PanelContext& context);

/// Draws the menu of commands on the picked token at the pointer; shared.open_token_menu opens it. Call once
/// a frame, after everything else.
void draw_token_menu(const PanelContext& context);

}  // namespace keyhole
