#include "app/actions/menus.h"

#include <algorithm>
#include <array>
#include <iterator>

namespace keyhole {

namespace {

struct MenuTitles {
    MenuGroup group;
    std::string_view menu;
    std::string_view submenu = "";  ///< empty: the items stand in the menu itself
};

constexpr std::array kMenuTitles = {
    MenuTitles{MenuGroup::file_open, "File"},
    MenuTitles{MenuGroup::file_export, "File"},
    MenuTitles{MenuGroup::file_part, "File", "Save a part"},
    MenuTitles{MenuGroup::file_cancel, "File"},
    MenuTitles{MenuGroup::file_quit, "File"},
    MenuTitles{MenuGroup::edit_undo, "Edit"},
    MenuTitles{MenuGroup::edit_find, "Edit"},
    MenuTitles{MenuGroup::edit_copy, "Edit"},
    MenuTitles{MenuGroup::edit_bookmark, "Edit"},
    MenuTitles{MenuGroup::view_arrangement, "View"},
    MenuTitles{MenuGroup::view_mode, "View"},
    MenuTitles{MenuGroup::view_compare, "View"},
    MenuTitles{MenuGroup::view_head, "View", "Layer and head"},
    MenuTitles{MenuGroup::view_rows, "View", "Rows of the heat map"},
    MenuTitles{MenuGroup::view_colors, "View", "Colours of the heat map"},
    MenuTitles{MenuGroup::view_text, "View", "Colours of the text"},
    MenuTitles{MenuGroup::view_curves, "View", "Curves and atlas"},
    MenuTitles{MenuGroup::view_window, "View"},
    MenuTitles{MenuGroup::run_step, "Run"},
    MenuTitles{MenuGroup::run_speed, "Run", "Speed"},
    MenuTitles{MenuGroup::run_say, "Run"},
    MenuTitles{MenuGroup::run_time, "Run"},
    MenuTitles{MenuGroup::run_rewind, "Run"},
    MenuTitles{MenuGroup::run_device, "Run"},
    MenuTitles{MenuGroup::lanes_add, "Lanes"},
    MenuTitles{MenuGroup::lanes_focus, "Lanes"},
    MenuTitles{MenuGroup::lanes_options, "Lanes"},
    MenuTitles{MenuGroup::lanes_all, "Lanes"},
    MenuTitles{MenuGroup::token_why, "Token"},
    MenuTitles{MenuGroup::token_watch, "Token"},
    MenuTitles{MenuGroup::token_evict, "Token", "Evict"},
    MenuTitles{MenuGroup::token_pin, "Token", "Pin"},
    MenuTitles{MenuGroup::token_edit, "Token"},
    MenuTitles{MenuGroup::lessons_list, "Lessons"},
    MenuTitles{MenuGroup::lessons_step, "Lessons"},
    MenuTitles{MenuGroup::lessons_save, "Lessons"},
    MenuTitles{MenuGroup::help_manual, "Help"},
    MenuTitles{MenuGroup::help_papers, "Help"},
    MenuTitles{MenuGroup::help_palette, "Help"},
    MenuTitles{MenuGroup::help_doctor, "Help"},
};

/// Returns the actions of a group in their order.
std::vector<const UserAction*> actions_of(MenuGroup group) {
    std::vector<const UserAction*> found;
    for (const UserAction& action : action_table())
        if (action.traits.menu.group == group) found.push_back(&action);
    std::ranges::stable_sort(found, {}, [](const UserAction* action) { return action->traits.menu.place; });
    return found;
}

MenuSection section_of(const MenuTitles& titles) {
    MenuSection section{titles.submenu, {}};
    for (const UserAction* action : actions_of(titles.group)) {
        for (const ActionChoice& choice : action->traits.choices) section.items.push_back({action, &choice});
        if (action->traits.choices.empty()) section.items.push_back({action, nullptr});
    }
    return section;
}

std::vector<Menu> make_menu_bar() {
    std::vector<Menu> bar;
    for (const MenuTitles& titles : kMenuTitles) {
        if (bar.empty() || bar.back().title != titles.menu) bar.push_back({titles.menu, {}});
        bar.back().sections.push_back(section_of(titles));
    }
    return bar;
}

}  // namespace

std::string MenuItem::text() const {
    return choice != nullptr ? fmt::format("{} {}", action->id, choice->arguments) : std::string(action->id);
}

std::span<const Menu> menu_bar() {
    static const std::vector<Menu> bar = make_menu_bar();
    return bar;
}

std::string_view menu_of(const UserAction& action) {
    const auto titles = std::ranges::find(kMenuTitles, action.traits.menu.group, &MenuTitles::group);
    return titles == kMenuTitles.end() ? std::string_view() : titles->menu;
}

ActionState action_state(const AppState& app, const MenuItem& item) {
    const ActionTraits& traits = item.action->traits;
    const auto is_on = item.choice != nullptr ? item.choice->is_on : traits.is_on;
    ActionState state;
    if (traits.lacks != nullptr) state.lacks = traits.lacks(app);
    state.ticked = is_on != nullptr && is_on(app);
    if (traits.object != nullptr) state.object = traits.object(app);
    return state;
}

}  // namespace keyhole
