/// The text, coloured by kept share, score or age; evicted tokens struck through, words that a lane was fed against its own choice
/// underlined. Window thread.
#pragma once

#include "app/panels/panel.h"

#include <cstdint>
#include <tuple>
#include <vector>

namespace keyhole {

struct TokenStrip {
    int last_row = -1;  ///< scrolled to
    float width = 0;    ///< of the text then
    // Of this state:
    std::vector<float> share;  ///< of KV heads that keep each token
    std::vector<int> own;      ///< token that the lane would have taken instead, -1: none
    bool any_fed = false;      ///< there is one
    std::tuple<std::uint64_t, int, int, int> share_of{0, -1, -1, -1};
};

void draw(TokenStrip& panel, const PanelContext& context);

}  // namespace keyhole
