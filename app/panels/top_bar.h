/// Menus, the model, the prompt, run and stop, and the status line. Window thread.
#pragma once

#include "app/panels/panel.h"
#include "app/gl/wrapped_text.h"

namespace keyhole {

struct TopBar {
    std::string draft;          ///< of the prompt, while its popup is open
    bool draft_is_new = false;  ///< not yet in lines
    WrappedText lines;          ///< the draft as the field shows it
    std::size_t cursor = 0;     ///< in the field
    std::string model_text;     ///< folder, while its popup is open
};

void draw_menus(TopBar& panel, const PanelContext& context);
void draw(TopBar& panel, const PanelContext& context);
void draw_status(const PanelContext& context);

}  // namespace keyhole
