/// Draws the text, coloured by kept share, score or age. Evicted tokens are struck through; tokens that a
/// lane consumed against its own choice are underlined. Window thread.
#pragma once

#include "app/panels/panel.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

namespace keyhole {

struct TextPanel {
    int last_row = -1;                    ///< position that was scrolled to
    std::optional<int> picked;            ///< the same for a picked token that was out of sight
    float width = 0;                      ///< width of the text at that time
    int drag_first = -1, drag_last = -1;  ///< tokens under the pointer since a press; -1: none
    /// Returns the tokens that the pointer was drawn over; one or none: it was a click.
    TokenSpan dragged() const {
        return drag_first < 0 ? TokenSpan{0, -1}
                              : TokenSpan{std::min(drag_first, drag_last), std::max(drag_first, drag_last)};
    }
    // Computed for the state that share_of names.
    std::vector<float> share;       ///< of KV heads that keep each token
    std::vector<int> own_choice;    ///< [position] token that the lane would have chosen instead; -1: none
    std::vector<bool> in_template;  ///< [position] the chat template wrote it
    bool any_forced = false;        ///< at least one position has such a token
    std::tuple<std::uint64_t, int, int, int> share_of{0, -1, -1, -1};
};

void draw(TextPanel& panel, const PanelContext& context);

/// Draws parts of the text in one line, as the panel does: that around the watched words, and that around a
/// picked token that it lacks. What has no room at their ends is left out.
void draw_parts(TextPanel& panel, const PanelContext& context, TokenSpan around_watched);

}  // namespace keyhole
