/// Lists everything that a user can do by name: one table drives menus, palette, tooltips, keys and scripts.
/// Window thread; knows neither GL nor ImGui.
#pragma once

#include "app/state/app_state.h"
#include "app/state/keys.h"
#include "app/state/menu_place.h"

#include <span>
#include <string>
#include <string_view>

namespace keyhole {

/// A menu item that gives an action its arguments.
struct ActionChoice {
    std::string_view arguments;
    std::string_view title;
    bool (*is_on)(const AppState&) = nullptr;
};

/// What the window and a crash report know of an action.
struct ActionTraits {
    MenuPlace menu = {};
    std::string_view elsewhere = "";  ///< where users find it, if in no menu; "" too if it needs arguments
    std::span<const ActionChoice> choices = {};            ///< the menu lists these in its place
    std::string_view (*lacks)(const AppState&) = nullptr;  ///< why it cannot run now; "": it can
    bool (*is_on)(const AppState&) = nullptr;              ///< ticked in the menu
    std::string (*object)(const AppState&) = nullptr;      ///< what it will change, for the menu
    bool arguments_are_plain = false;  ///< they hold no text or path of the user: a crash report names them
    bool is_drag = false;              ///< a drag or a field runs it in every frame
};

struct UserAction {
    std::string_view id;     ///< used by scripts and the palette
    std::string_view title;  ///< sentence case; ends with an ellipsis if input follows
    std::string_view help;   ///< one line; begins with the arguments, if it takes any
    Shortcut shortcut;
    void (*run)(AppState&, std::string_view arguments);
    ActionTraits traits = {};
};

std::span<const UserAction> action_table();
/// Returns the action with this id, present or former; null if there is none.
const UserAction* find_action(std::string_view id);
const UserAction* find_action(Shortcut shortcut);
/// Returns "Ctrl+Shift+E", or an empty text without a key.
std::string shortcut_text(const Shortcut& shortcut);

/// Runs `id arguments`. Throws Error(wrong_use) for an unknown id (names the nearest ones) or wrong
/// arguments.
void run_action(AppState& app, std::string_view text);

}  // namespace keyhole
