/// The field of a formula on a policy card: below it the fault of its text, names that fit the word at the
/// cursor (Tab or a click inserts, arrows choose, Escape closes the list), and what the formula would rank. A
/// text with a fault is not applied and stays in the field: the lane keeps its last good formula. Window
/// thread, within a frame.
#pragma once

#include "app/panels/formula_plot.h"
#include "engine/policy/formula_words.h"
#include "engine/policy/option_table.h"

#include <imgui.h>

#include <string>
#include <string_view>

namespace keyhole {

struct PolicyEditor;

/// The one field that is edited, or was left with a fault.
struct FormulaField {
    std::string option{};  ///< empty: none
    int lane = -1;
    std::string text{};
    std::string in_force{};  ///< the lane's text when the edited one was left with a fault
    bool edited = false;     ///< it has the keyboard, or a word of its list is being clicked
    bool holds = false;      ///< it was left with a fault
    std::size_t cursor = 0;
    FormulaWords words{};
    bool offers = false;  ///< the words are listed
    int marked = 0;
    bool takes_focus = false, leaves = false;  ///< in the next frame; to the next widget
    ImVec2 list_min{}, list_max{};             ///< of the list, in the last frame
    FormulaPlot plot{};
};

/// Draws the field, with a mark at the fault.
void draw_formula_field(PolicyEditor& edit, const LaneOption& option, FormulaText& value, float width);
/// Returns the fault in a line, with its place; at npos: without.
std::string brief_fault(const FormulaFault& fault);
/// Draws what stands below the field, if it is this option's.
void draw_below_formula(PolicyEditor& edit, const LaneOption& option);

}  // namespace keyhole
