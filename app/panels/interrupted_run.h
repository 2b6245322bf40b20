/// Draws the notice about runs that were open when Keyhole ended by a signal or a crash: Open, Discard,
/// Later. Window thread, within a frame; reads no spool itself.
#pragma once

#include "app/panels/panel.h"
#include "app/state/run_backups.h"

namespace keyhole {

/// Draws nothing if there is no such run.
void draw_interrupted_runs(RunBackups& runs, const PanelContext& context);

}  // namespace keyhole
