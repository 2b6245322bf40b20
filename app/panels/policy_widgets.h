/// Widgets of a policy card: one row an option, with its help as tooltip. They edit a draft of the parameters; the change counts when
/// a widget is let go, since what a value on the way would evict is gone for good. Window thread.
#pragma once

#include "app/panels/panel.h"
#include "engine/policy/option_help.h"

#include <array>
#include <string_view>

namespace keyhole {

/// A handle of the tau curve that is held: the axes rest meanwhile, or it would run away from the pointer.
struct TauDrag {
    int held = -1;  ///< index of the handle
    double span = 1, low = 0, high = 1;
};

struct PolicyEditor {
    const PanelContext& context;
    PolicyParams& policy;
    TauDrag& tau_drag;
    HeadGrid heads;  ///< of the model on show; empty: none
    int lane = 0;    ///< index of the card
    float label_width = 0;
    float right = 0;         ///< edge of the card's content, in screen pixels
    bool committed = false;  ///< a value was let go
    bool active = false;     ///< one is being dragged

    /// The label of an option, its help on hover; the cursor is beside it then.
    void label(std::string_view option);
    /// Pixels from the cursor to the edge.
    float room() const { return right - ImGui::GetCursorScreenPos().x; }
    /// Rows of options: labels and widgets. Options that are idle are left to idle_options().
    void row(std::initializer_list<std::string_view> options);
    /// The options without effect, greyed, each saying why.
    void idle_options(std::initializer_list<std::string_view> options);

    template <class Enum, std::size_t n>
    void choice(std::string_view option, Enum& value, const std::array<const char*, n>& names, float width);
    void amount(std::string_view option, Amount& value, float width);
    void number(std::string_view option, double& value, float speed, float low, float high,
                const char* format, float width);
    void integer(std::string_view option, int& value, int low, int high, const char* format, float width);
    /// After a dragged or typed widget.
    void after_drag();

  private:
    void widget(std::string_view option, float width);
};

/// Help of an option as its tooltip says it: what it does, the paper, its form in a spec, and why it is idle.
std::string option_tooltip(std::string_view option, std::string_view idle);

/// Shape and values of a tau schedule, with its curve, whose points can be dragged. True: a value was let go; `active` while one is held.
bool edit_tau(const PanelContext& context, TauSchedule& tau, const ResolvedPolicy& in_force, int now,
              float width, TauDrag& drag, bool& active);

}  // namespace keyhole
