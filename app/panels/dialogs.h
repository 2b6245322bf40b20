/// The windows over the window: command palette, keys, export, file names, go to, find, what you see. Window
/// thread.
#pragma once

#include "app/panels/override_matrix.h"
#include "app/panels/panel.h"

namespace keyhole {

struct Dialogs {
    OverrideMatrix overrides;
    Dialog shown = Dialog::none;
    std::string text;  ///< of the palette or of the one field
    int selected = 0;  ///< in the palette
    bool keys_down = false, keys_up = false;
};

void draw(Dialogs& panel, const PanelContext& context);

}  // namespace keyhole
