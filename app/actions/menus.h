/// Lays out the menu bar, and says what an action is about to do or undo. Window thread; knows neither GL nor
/// ImGui.
#pragma once

#include "app/actions/action_table.h"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

struct MenuItem {
    std::string_view action;      ///< id, or id and arguments
    std::string_view title = "";  ///< empty: the action's own
    std::string_view id() const { return action.substr(0, action.find(' ')); }
    std::string_view arguments() const;
};

/// Items that belong together. Without a title they stand in the menu itself, with a line above; otherwise
/// they are a submenu.
struct MenuGroup {
    std::string_view title;
    std::vector<MenuItem> items;
};

struct Menu {
    std::string_view title;
    std::vector<MenuGroup> groups;
};

std::span<const Menu> menu_bar();
/// Returns the title of the menu that lists an action; empty if none does.
std::string_view menu_of(std::string_view action_id);

/// How an action stands now.
struct ActionState {
    bool possible = true;
    bool ticked = false;  ///< a switch that is on, or the choice in force
    std::string object;   ///< what the action will change, such as the change that undo takes back
};
ActionState action_state(const AppState& app, const MenuItem& item);

}  // namespace keyhole
