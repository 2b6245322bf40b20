/// What a first start says in a strip below the panes: the first paragraph of *What you see*. Window thread,
/// within a frame.
#pragma once

#include "app/panels/panel.h"

#include <span>
#include <string_view>

namespace keyhole {

/// A paragraph of *What you see*.
struct SeenPart {
    std::string_view name, words;
};
/// Returns the paragraphs, the one for a first start first.
std::span<const SeenPart> parts_on_show();

/// Draws the strip; sets `open` to false once the user closes it.
void draw_first_words(bool& open, const PanelContext& context);

}  // namespace keyhole
