/// The windows over the window: command palette, keys, export, file names, go to, find, what you see. Window
/// thread.
#pragma once

#include "app/panels/doctor_panel.h"
#include "app/panels/override_matrix.h"
#include "app/panels/panel.h"
#include "app/panels/why_page.h"

namespace keyhole {

struct Dialogs {
    OverrideMatrix overrides;
    DoctorPanel doctor;
    WhyPage why;
    Dialog shown = Dialog::none;
    std::string text;       ///< of the palette or of the one field
    int selected = 0;       ///< in the palette
    int picture_width = 0;  ///< 0: as the cells ask
    bool picture_of_shown = false;
    int selected_by = 0;  ///< moves that the arrow keys ask for
};

void draw(Dialogs& panel, const PanelContext& context);

}  // namespace keyhole
