/// Why did this token go? The life of the picked token in the focused lane on one page. Window thread.
#pragma once

#include "app/panels/panel.h"
#include "engine/analysis/token_lifetime.h"

namespace keyhole {

struct WhyPage {
    TokenLifetime lifetime;  ///< as of the run below
    std::uint64_t generation = 0;
    int last_row = -1;
};

void draw(WhyPage& page, const PanelContext& context);

}  // namespace keyhole
