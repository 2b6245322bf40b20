/// Draws the widgets of a policy card: one row an option, with its help as tooltip. They edit a draft of the
/// parameters. A change applies when the widget is released, since eviction by a value during the drag would
/// be final. Window thread.
#pragma once

#include "app/panels/formula_field.h"
#include "app/panels/panel.h"
#include "engine/policy/option_help.h"
#include "engine/policy/option_table.h"

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

namespace keyhole {

/// A handle of the tau curve during a drag. The axes are frozen, so that the handle stays under the pointer.
struct TauDrag {
    int held = -1;  ///< index of the handle
    double span = 1, low = 0, high = 1;
};

struct PolicyEditor {
    const PanelContext& context;
    PolicyParams& policy;
    /// The lane's own: says which options have rows, so that none goes while it is edited.
    const PolicyParams& in_force;
    TauDrag& tau_drag;
    FormulaField& formula_field;
    HeadGrid heads;  ///< of the model on show; empty: no model
    int lane = 0;    ///< index of the card
    float label_width = 0;
    float right = 0;         ///< right edge of the card's content, in screen pixels
    bool committed = false;  ///< a widget was released with a new value
    bool active = false;     ///< a widget is being dragged

    /// Draws the paper's word for an option and its key, and leaves the cursor where a widget of this least
    /// width has its place: behind them, or on the next line.
    void word(const LaneOption& option, float least);
    /// Draws an option that makes the preset what it is: the word, the key and the widget. Draws nothing for
    /// one without effect.
    void front(const LaneOption& option);

    /// Draws the label of an option, with its help on hover, and leaves the cursor beside it.
    void label(std::string_view option);
    /// Returns the pixels from the cursor to the right edge.
    float room() const { return right - ImGui::GetCursorScreenPos().x; }
    /// Draws a row of options: labels and widgets. Skips options without effect, which idle_options() draws.
    void row(std::initializer_list<std::string_view> names);
    /// Draws the rows of the table of options, but for those that front() has drawn.
    void rows();
    /// Draws the options of these rows without effect, greyed, each with its reason.
    void idle_options();

    void amount(std::string_view option, Amount& value, float width);
    void number(std::string_view option, double& value, float speed, float low, float high,
                const char* format, float width);
    void integer(std::string_view option, int& value, int low, int high, const char* format, float width);
    /// Call after a widget that can be dragged or typed into.
    void after_drag();

  private:
    void row(std::span<const LaneOption* const> options);
    /// Draws the widget that the type of the option's member needs.
    void widget(const LaneOption& option, float width);
    void choice(const LaneOption& option, const WordsOf<PolicyParams>& of, float width);
    void tau(TauSchedule& value, float width);
    void heads_table(HeadTable& value);
    void calibration(CalibrationRef& value);
    /// Draws the buttons of an option that a file gives; returns whether the value becomes none.
    bool file_buttons(std::string_view option, std::string_view asks, bool has_value);
};

/// Returns the tooltip of an option: meaning, paper, form in a spec, and why it has no effect if `idle` says
/// so.
std::string option_tooltip(std::string_view option, std::string_view idle);

/// Edits shape and values of a tau schedule, with its curve, whose points can be dragged. Returns true if a
/// value was released; sets `active` during a drag.
bool edit_tau(const PanelContext& context, TauSchedule& tau, const ResolvedPolicy& in_force, int now,
              float width, TauDrag& drag, bool& active);

}  // namespace keyhole
