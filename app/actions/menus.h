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
    const UserAction* action = nullptr;
    const ActionChoice* choice = nullptr;  ///< null: the action without arguments
    std::string_view title() const { return choice != nullptr ? choice->title : action->title; }
    /// Returns the id, with the arguments of the choice.
    std::string text() const;
};

/// Items that belong together. Without a title they stand in the menu itself, with a line above; otherwise
/// they are a submenu.
struct MenuSection {
    std::string_view title;
    std::vector<MenuItem> items;
};

struct Menu {
    std::string_view title;
    std::vector<MenuSection> sections;
};

/// Returns the bar that the rows of the action table make.
std::span<const Menu> menu_bar();
/// Returns the title of the menu that lists an action; empty if none does.
std::string_view menu_of(const UserAction& action);

/// How an action stands now.
struct ActionState {
    std::string_view lacks;  ///< why it cannot run; empty: it can
    bool ticked = false;     ///< a switch that is on, or the choice in force
    std::string object;      ///< what the action will change, such as the change that undo takes back
    bool possible() const { return lacks.empty(); }
};
ActionState action_state(const AppState& app, const MenuItem& item);

}  // namespace keyhole
