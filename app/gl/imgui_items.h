/// What Dear ImGui's public interface does not say of an item, and what it does not let a program do with
/// one. Window thread, within a frame.
#pragma once

namespace keyhole {

/// The item that was drawn last.
struct LastItem {
    unsigned id = 0;          ///< 0: it takes no input
    bool takes_text = false;  ///< a field, or a slider whose number can be typed
    bool is_enabled = true;
    unsigned window = 0;           ///< the id of its window
    const char* root_window = "";  ///< the name of the window that its window is a part of
};
LastItem last_item();

/// Returns the id of the item that is held or edited; 0: none.
unsigned active_item();

/// Presses an item in the next frame, as a click does; one that takes text is then edited.
void press_item(unsigned id, bool takes_text);

/// Scrolls the current window so far that the last item is in it.
void scroll_to_last_item();

/// Lets the arrow keys move through the open menu, and Space take an entry; else they do nothing.
void let_keys_move_in_menus();
/// Returns whether they do in this frame.
bool keys_move_in_menu();

}  // namespace keyhole
