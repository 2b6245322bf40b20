/// The notice of runs that did not end, with Open and Discard. Window thread.
#pragma once

#include "app/panels/panel.h"
#include "app/state/kept_runs.h"

namespace keyhole {

/// Draws nothing where none is left.
void draw_left_run(KeptRuns& runs, const PanelContext& context);

}  // namespace keyhole
