/// Decides who gets a key press: the edited text field, the open list, or the commands. Window thread; knows
/// neither GL nor ImGui.
#pragma once

#include "app/state/dialog.h"

namespace keyhole {

/// The fields and popups that may take keys at one moment.
struct KeyFocus {
    bool in_text = false;  ///< a text field is being edited
    int n_popups = 0;      ///< open menus, lists and popups, one within the other
    Dialog dialog = Dialog::none;
    bool in_page = false;  ///< the dialog stands beside the panes, and has the focus
    bool operator==(const KeyFocus&) const = default;
};

/// Returns true if a key press is for commands. A key that types (without Ctrl, Alt or Super; Shift alone
/// still types) is a command only if no field is edited and neither a popup nor a dialog in front is open.
/// A page that stands beside the panes and has the focus takes the arrow keys, Page Up, Page Down, Home and
/// End, which scroll it. Function keys type nothing, so they are commands also in front of a dialog. With
/// Ctrl or Alt a key is a command, except those that an edited text field uses.
bool is_for_commands(const KeyFocus& focus, int code, int mods);
/// Returns whether the key moves within a page: an arrow, Page Up, Page Down, Home or End.
bool moves_in_page(int code);

}  // namespace keyhole
