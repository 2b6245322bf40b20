#include "app/window/key_focus.h"

#include "app/state/keys.h"

#include <string_view>

namespace keyhole {

bool moves_in_page(int code) {
    return code >= key::kRight && code <= key::kEnd;
}

bool is_for_commands(const KeyFocus& focus, int code, int mods) {
    const bool function_key = code >= key::kF1 && code <= key::kF12;
    const bool types = (mods & ~key::kShift) == 0;
    if (focus.in_text) {
        // Clipboard, select all, undo and redo; and keys that move or delete by words.
        const bool edits = std::string_view("ACVXYZ").find(static_cast<char>(code)) != std::string_view::npos;
        return !types && !(code < key::kEscape && edits) && (code < key::kEscape || code >= key::kF1);
    }
    if (!types) return true;
    if (focus.in_page && moves_in_page(code)) return false;
    return focus.n_popups == 0 && (!is_in_front(focus.dialog) || function_key);
}

}  // namespace keyhole
