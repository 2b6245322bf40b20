/// Where an action stands in the menu bar. Plain values; any thread; knows neither GL nor ImGui.
#pragma once

namespace keyhole {

/// The groups of the menu bar, in its order. actions/menus.cpp says in which menu each
/// stands.
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

}  // namespace keyhole
