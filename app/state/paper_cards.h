/// Hands the papers' figures of the command line to the window's page. Any thread.
#pragma once

#include "app/state/paper_figures.h"

#include <vector>

namespace keyhole {

std::vector<PaperCard> paper_cards();

}  // namespace keyhole
