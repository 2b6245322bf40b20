/// Draws pages of the manual in the window. A click on a link goes to its page. Window thread.
#pragma once

#include "app/panels/panel.h"

#include <vector>

namespace keyhole {

struct ManualReader {
    ManualPlace shown;              ///< place that the last frame drew
    std::vector<ManualPlace> back;  ///< places before this one
    bool scrolls = false;           ///< this frame scrolls to the place
};

/// Draws AppState::manual_page into the current window.
void draw(ManualReader& reader, const PanelContext& context);

}  // namespace keyhole
