/// Menus, the model, the prompt, run and stop, and the status line. Window thread.
#pragma once

#include "app/panels/panel.h"

namespace keyhole {

struct TopBar {
    std::string draft;       ///< of the prompt, while its popup is open
    std::string model_text;  ///< folder, while its popup is open
};

void draw_menus(TopBar& panel, const PanelContext& context);
void draw(TopBar& panel, const PanelContext& context);
void draw_status(const PanelContext& context);

}  // namespace keyhole
