/// The text, coloured by kept share or score; evicted tokens struck through. Window thread.
#pragma once

#include "app/panels/panel.h"

#include <cstdint>
#include <tuple>
#include <vector>

namespace keyhole {

struct TokenStrip {
    int last_row = -1;         ///< scrolled to
    float width = 0;           ///< of the text then
    std::vector<float> share;  ///< of KV heads that keep each token: of this state
    std::tuple<std::uint64_t, int, int, int> share_of{0, -1, -1, -1};
};

void draw(TokenStrip& panel, const PanelContext& context);

}  // namespace keyhole
