/// Numbers the keys of shortcuts as GLFW does (a printable key is its upper-case character), so that the
/// tables of actions and dialogs need no window. window.cpp checks that the numbers agree. Any thread.
#pragma once

namespace keyhole {

namespace key {
inline constexpr int kEscape = 256, kEnter = 257, kTab = 258, kRight = 262, kLeft = 263, kDown = 264,
                     kUp = 265, kPageUp = 266, kPageDown = 267, kHome = 268, kEnd = 269, kF1 = 290,
                     kF12 = 301;
inline constexpr int kShift = 1, kCtrl = 2, kAlt = 4;
}  // namespace key

struct Shortcut {
    int code = 0;  ///< 0: none
    int mods = 0;
    bool operator==(const Shortcut&) const = default;
};

}  // namespace keyhole
