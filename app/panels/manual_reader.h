/// Draws pages of the manual in the window. A click on a link goes to its page. Window thread.
#pragma once

#include "app/manual/page.h"
#include "app/panels/panel.h"

#include <string>
#include <vector>

namespace keyhole {

struct ManualReader {
    std::string shown;  ///< place that `page` was read for, as AppState::manual_place
    ManualPage page;
    std::string fault;              ///< why the page cannot be read; "": it can
    std::vector<std::string> back;  ///< places before this one
    bool scrolls = false;           ///< the next frame scrolls to the place
};

/// Draws the page of AppState::manual_place into the current window.
void draw(ManualReader& reader, const PanelContext& context);

}  // namespace keyhole
