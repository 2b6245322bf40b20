/// Lists everything that a user can do by name: one table drives menus, palette, tooltips, keys and scripts.
/// Window thread; knows neither GL nor ImGui.
#pragma once

#include "app/actions/keys.h"
#include "app/state/app_state.h"

#include <span>
#include <string_view>

namespace keyhole {

struct UserAction {
    std::string_view id;     ///< used by scripts and the palette
    std::string_view title;  ///< sentence case; ends with an ellipsis if input follows
    std::string_view help;   ///< one line; begins with the arguments, if it takes any
    Shortcut shortcut;
    void (*action)(AppState&, std::string_view arguments);
};

std::span<const UserAction> action_table();
/// Returns the action with this id, present or former; null if there is none.
const UserAction* find_action(std::string_view id);
const UserAction* find_action(Shortcut shortcut);

/// Runs `id arguments`. Throws Error(wrong_use) for an unknown id (names the nearest ones) or wrong
/// arguments.
void run_action(AppState& app, std::string_view text);

}  // namespace keyhole
