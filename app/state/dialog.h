/// The dialogs over the window: one row says all that is known of each without drawing it. panels/dialogs
/// draws them, actions/dialog_actions opens them. Plain values; any thread; knows neither GL nor ImGui.
#pragma once

#include "app/state/keys.h"
#include "app/state/menu_place.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace keyhole {

enum class Dialog {
    none,
    palette,
    keys,
    export_run,
    open_trace,
    save_trace,
    save_picture,
    save_screenshot,
    go_to,
    find,
    overrides,
    say,
    edit_token,
    why,
    doctor,
    notes,
    about,
    manual,
    papers,
    policies,
    attribution
};

/// What menus, palette and tooltips say of an action that only opens a dialog.
struct DialogOpener {
    std::string_view title;  ///< sentence case; ends with an ellipsis if input follows
    std::string_view help;   ///< one line
    Shortcut shortcut;
    MenuPlace menu;
};

struct DialogRow {
    Dialog dialog;
    std::string_view name;  ///< in the window's report
    std::string_view title;
    float width;  ///< in unscaled pixels
    /// It stands in the middle, in front of everything, and takes the keys. Other dialogs stay beside the
    /// panes while the user works on.
    bool in_front;
    std::string_view action;  ///< opens it
    /// Makes that action. Without a title the action does more, and has a row of its own in app/actions.
    DialogOpener opener = {};
};

inline constexpr std::array kDialogs = {
    DialogRow{Dialog::palette,
              "palette",
              "Command palette",
              640,
              true,
              "palette",
              {"Command palette…", "", {'P', key::kCtrl}, {MenuGroup::help_palette, 1}}},
    DialogRow{Dialog::keys,
              "keys",
              "Keys",
              760,
              true,
              "help.keys",
              {"Keys", "", {'/', key::kShift}, {MenuGroup::help_manual, 2}}},
    DialogRow{Dialog::export_run, "export", "Export the run", 570, true, "file.export"},
    DialogRow{Dialog::open_trace, "open trace", "Open a trace", 480, true, "file.open"},
    DialogRow{Dialog::save_trace, "save trace", "Save the trace", 480, true, "file.save"},
    DialogRow{Dialog::save_picture, "save picture", "Save a picture", 480, true, "file.picture"},
    DialogRow{Dialog::save_screenshot, "save screenshot", "Save a screenshot", 480, true, "screenshot"},
    DialogRow{Dialog::go_to, "go to", "Go to", 480, true, "goto"},
    DialogRow{Dialog::find, "find", "Find words", 480, true, "find"},
    DialogRow{Dialog::overrides, "overrides", "Overrides by head", 500, false, "lane.overrides"},
    DialogRow{Dialog::say, "say", "Append a turn", 480, true, "say"},
    DialogRow{Dialog::edit_token, "edit token", "Replace the text from here", 480, true, "token.edit"},
    DialogRow{Dialog::why, "why", "Why did this token go?", 640, false, "why"},
    DialogRow{Dialog::doctor,
              "doctor",
              "Eviction doctor and memory",
              640,
              false,
              "doctor",
              {"Eviction doctor and memory…",
               "Checks the focused lane's invariants, broken ones in red; shows memory under other sharing "
               "schemes.",
               {key::kF1 + 4},
               {MenuGroup::help_doctor, 1}}},
    DialogRow{Dialog::notes,
              "notes",
              "Bookmarks and notes",
              460,
              false,
              "bookmarks",
              {"Bookmarks and notes…",
               "Stored views, notes on the run, and recent files.",
               {'M', key::kShift},
               {MenuGroup::edit_bookmark, 2}}},
    DialogRow{Dialog::about,
              "about",
              "What you see",
              620,
              true,
              "help.about",
              {"What you see", "", {}, {MenuGroup::help_manual, 3}}},
    DialogRow{Dialog::manual, "manual", "Manual", 760, false, "help.manual"},
    DialogRow{Dialog::papers, "papers", "Figures of the papers", 860, false, "papers"},
    DialogRow{Dialog::policies,
              "policies",
              "Policies",
              860,
              false,
              "policies",
              {"Policies…",
               "Shows the policies by what they look at, and what each keeps of the same prompt.",
               {},
               {MenuGroup::lanes_options, 3}}},
    DialogRow{Dialog::attribution,
              "attribution",
              "What does the eviction cost?",
              760,
              false,
              "attribution",
              {"What does the eviction cost?",
               "Gives heads, layers or tokens back one at a time, and ranks what that gains.",
               {},
               {MenuGroup::lanes_options, 4}}},
};

/// Returns the row of a dialog; null for Dialog::none.
constexpr const DialogRow* dialog_row(Dialog dialog) {
    const auto found = std::ranges::find(kDialogs, dialog, &DialogRow::dialog);
    return found == kDialogs.end() ? nullptr : &*found;
}

/// Returns whether the dialog stands in front of everything.
constexpr bool is_in_front(Dialog dialog) {
    const DialogRow* row = dialog_row(dialog);
    return row != nullptr && row->in_front;
}

}  // namespace keyhole
