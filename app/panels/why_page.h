/// Draws the page "Why did this token go?": the history of the picked token in the focused lane. Window
/// thread.
#pragma once

#include "app/panels/panel.h"
#include "engine/analysis/token_lifetime.h"
#include "engine/analysis/token_state.h"

#include <optional>
#include <vector>

namespace keyhole {

struct WhyPage {
    TokenLifetime lifetime;  ///< of the run with the generation below
    /// How the token competed in each layer * n_heads + head: when it went, or else at the shown step.
    std::vector<std::optional<Competition>> competitions;
    int row = -1;  ///< the shown step
    std::uint64_t generation = 0;
    int last_row = -1;
};

void draw(WhyPage& page, const PanelContext& context);

}  // namespace keyhole
