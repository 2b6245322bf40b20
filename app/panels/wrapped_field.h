/// A field of several lines that wrap to its width, which Dear ImGui's do not. Window thread, within a frame.
#pragma once

#include "app/gl/wrapped_text.h"

#include <imgui.h>

#include <string>
#include <string_view>

namespace keyhole {

struct WrappedField {
    WrappedText lines;       ///< the text as the field shows it
    std::size_t cursor = 0;  ///< in the shown text
};

/// Returns the width of a text in pixels, in the current font.
float drawn_width(std::string_view text);
/// Returns the room for lines in a field of this width.
float room_for_lines(float field_width);
/// Draws the field, which shows `shown` until it is edited. Undo is off, since it would restore line breaks
/// that moved meanwhile.
void draw_wrapped_field(const char* id, WrappedField& field, std::string shown, ImVec2 size);

}  // namespace keyhole
