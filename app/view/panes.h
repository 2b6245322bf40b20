/// The panes of the window: one row says all that is known of each without drawing it. panels/arrangement
/// draws them. Plain values; any thread; knows neither GL nor ImGui.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>

namespace keyhole {

enum class Pane {
    none,
    lanes,
    atlas,
    curves,
    details,
    text,
    answers,
    heatmap,
    compare,
    doctor,
    time,
    story,
    lesson,
};

struct PaneRow {
    Pane pane;
    std::string_view name;   ///< in view.side, in lessons (`at`), and of its area on the screen: "pane NAME"
    std::string_view title;  ///< of its tab; empty: it never shares a place in a column
    Pane home;               ///< the pane in whose place it stands; itself, if it has its own
    std::string_view manual = "window#panes";  ///< where the manual describes it
    std::string_view former = "";              ///< its name in earlier lessons and scripts
};

/// In the order of view.side.
inline constexpr std::array kPanes = {
    PaneRow{Pane::lanes, "lanes", "Lanes", Pane::lanes, "lanes-and-policies"},
    PaneRow{Pane::atlas, "atlas", "Atlas", Pane::atlas},
    PaneRow{Pane::curves, "curves", "Curves", Pane::curves, "window#panes", "measures"},
    PaneRow{Pane::details, "details", "Details", Pane::details, "window#panes", "info"},
    PaneRow{Pane::text, "text", "Text", Pane::text},
    PaneRow{Pane::answers, "answers", "", Pane::text},
    PaneRow{Pane::heatmap, "heatmap", "Head", Pane::heatmap, "window#panes", "head"},
    PaneRow{Pane::compare, "compare", "", Pane::compare},
    PaneRow{Pane::doctor, "doctor", "", Pane::details},  // the doctor's line; its page is a dialog
    PaneRow{Pane::time, "time", "", Pane::time, "window#run-and-time"},
    PaneRow{Pane::story, "story", "", Pane::story, "window#the-story"},
    PaneRow{Pane::lesson, "lesson", "", Pane::lesson},
};

/// Returns the row of a pane; null for Pane::none.
constexpr const PaneRow* pane_row(Pane pane) {
    const auto found = std::ranges::find(kPanes, pane, &PaneRow::pane);
    return found == kPanes.end() ? nullptr : &*found;
}

/// Returns the row with this name, present or former; null: none has it.
constexpr const PaneRow* find_pane(std::string_view name) {
    const auto found = std::ranges::find_if(kPanes, [&](const PaneRow& row) {
        return !name.empty() && (row.name == name || row.former == name);
    });
    return found == kPanes.end() ? nullptr : &*found;
}

constexpr std::string_view pane_name(Pane pane) {
    const PaneRow* row = pane_row(pane);
    return row == nullptr ? std::string_view() : row->name;
}

/// Returns the pane in whose place it stands; Pane::none for none.
constexpr Pane home_of(Pane pane) {
    const PaneRow* row = pane_row(pane);
    return row == nullptr ? Pane::none : row->home;
}

/// Returns whether it shares a place with others if the window has no room for all: see view.side.
constexpr bool has_tab(Pane pane) {
    const PaneRow* row = pane_row(pane);
    return row != nullptr && !row->title.empty();
}

}  // namespace keyhole
