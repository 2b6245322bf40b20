/// Everything a user can do by name: one table drives menu, palette, tooltips, keys and scripts. Window
/// thread; knows neither GL nor ImGui.
#pragma once

#include "app/state/app_state.h"
#include "app/actions/keys.h"

#include <span>
#include <string_view>

namespace keyhole {

struct UserAction {
    std::string_view id;     ///< of scripts and palette
    std::string_view menu;   ///< File, Run, View, Time, Lanes, Help; empty: palette and scripts alone
    std::string_view title;  ///< sentence case, with an ellipsis when input follows
    std::string_view help;   ///< one line; starts with the arguments where it takes any
    Shortcut shortcut;
    void (*action)(AppState&, std::string_view arguments);
};

std::span<const UserAction> action_table();
const UserAction* find_action(std::string_view id);
const UserAction* find_action(Shortcut shortcut);

/// `id arguments`. Throws Error(wrong_use): unknown id (with the nearest), or arguments that do not fit.
void run_action(AppState& app, std::string_view text);

}  // namespace keyhole
