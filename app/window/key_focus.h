/// Whose a key press is: the text field's, the open list's, or a command's. Window thread; knows neither GL nor ImGui.
#pragma once

#include "app/state/app_state.h"

namespace keyhole {

/// What may take keys at one moment.
struct KeyFocus {
    bool in_text = false;  ///< a text field is being edited
    int n_popups = 0;      ///< menus, lists and popups that are open, one within the other
    Dialog dialog = Dialog::none;
    bool operator==(const KeyFocus&) const = default;
};

/// It stands before everything else, in the middle; the others stay beside the panes while a person works on.
bool is_in_front(Dialog dialog);

/// A key that types (without Ctrl, Alt or Super; Shift alone still types) is a command only where no field is edited and neither a popup
/// nor a dialog in front is open; function keys type nothing, so a dialog leaves them. With Ctrl or Alt it is a command, except those
/// that a text field knows.
bool is_for_commands(const KeyFocus& focus, int code, int mods);

}  // namespace keyhole
