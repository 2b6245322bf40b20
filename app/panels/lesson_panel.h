/// The lesson beside the panes: its question, the steps, what to predict, what was measured, and a control to
/// play with; and the ring around the thing to look at. Window thread, within a frame.
#pragma once

#include "app/panels/panel.h"
#include "app/panels/tried_settings.h"
#include "app/panels/wrapped_field.h"

#include <string>

namespace keyhole {

struct LessonPanel {
    double slider = 0;    ///< of the control to play with
    TriedSettings tried;  ///< by the slider of a step
    bool slides = false;
    bool shows_claims = false;  ///< what was measured, line by line
    bool shows_reveal = false;  ///< since the frame before; it is scrolled to once
    std::string edited;         ///< id of the field that is edited; empty: none
    WrappedField field;         ///< shows its text, if it has several lines
    std::string line;           ///< its text, if it has one line
};

/// Returns the width that a lesson takes from the panes, in pixels; 0: none is shown.
float lesson_width(const PanelContext& context);
/// Returns the pane that the lesson looks at. It gets more room and no small print, since a class reads it
/// from a distance.
Pane lesson_looks_at(const PanelContext& context);
/// Draws lesson and ring. Call after the panes, since the ring goes around one of them.
void draw(LessonPanel& panel, const PanelContext& context);

}  // namespace keyhole
