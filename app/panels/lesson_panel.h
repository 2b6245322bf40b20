/// The lesson beside the panes: its question, the steps, what to predict, what was measured, and a control to
/// play with; and the ring around the thing to look at. Window thread, within a frame.
#pragma once

#include "app/panels/panel.h"
#include "app/panels/wrapped_field.h"

#include <string>

namespace keyhole {

struct LessonPanel {
    double slider = 0;  ///< of the control to play with
    bool slides = false;
    std::string edited;  ///< id of the field that is edited; empty: none
    WrappedField field;  ///< shows its text
};

/// Returns the width that a lesson takes from the panes, in pixels; 0: none is shown.
float lesson_width(const PanelContext& context);
/// Returns whether the lesson looks at the text, which then gets more room.
bool lesson_looks_at_text(const PanelContext& context);
/// Draws lesson and ring. Call after the panes, since the ring goes around one of them.
void draw(LessonPanel& panel, const PanelContext& context);

}  // namespace keyhole
