/// Draws the page "Why did this token go?": the history of the picked token in the focused lane. Window
/// thread.
#pragma once

#include "app/panels/panel.h"
#include "engine/analysis/token_lifetime.h"

namespace keyhole {

struct WhyPage {
    TokenLifetime lifetime;  ///< of the run with the generation below
    std::uint64_t generation = 0;
    int last_row = -1;
};

void draw(WhyPage& page, const PanelContext& context);

}  // namespace keyhole
