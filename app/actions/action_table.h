/// Lists everything that a user can do by name: one table drives menus, palette, tooltips, keys and scripts.
/// Window thread; knows neither GL nor ImGui.
#pragma once

#include "app/actions/keys.h"
#include "app/state/app_state.h"

#include <span>
#include <string>
#include <string_view>

namespace keyhole {

/// The groups of the menu bar, in its order. menus.cpp says in which menu each stands.
enum class MenuGroup {
    none,
    file_open,
    file_export,
    file_part,
    file_cancel,
    file_quit,
    edit_undo,
    edit_find,
    edit_copy,
    edit_bookmark,
    view_arrangement,
    view_mode,
    view_compare,
    view_head,
    view_rows,
    view_colors,
    view_text,
    view_curves,
    view_window,
    run_step,
    run_speed,
    run_say,
    run_time,
    run_rewind,
    run_device,
    lanes_add,
    lanes_focus,
    lanes_options,
    lanes_all,
    token_why,
    token_watch,
    token_evict,
    token_pin,
    token_edit,
    lessons_list,
    lessons_step,
    lessons_save,
    help_manual,
    help_papers,
    help_palette,
    help_doctor,
};

struct MenuPlace {
    MenuGroup group = MenuGroup::none;
    int place = 0;  ///< order within the group; equal ones stand in the table's order
};

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

/// Runs `id arguments`. Throws Error(wrong_use) for an unknown id (names the nearest ones) or wrong
/// arguments.
void run_action(AppState& app, std::string_view text);

}  // namespace keyhole
