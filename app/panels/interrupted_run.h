/// Draws the notice about runs that were open when Keyhole ended by a signal or a crash: Open, Discard,
/// Later. Window thread, within a frame; reads no spool itself.
#pragma once

#include "app/panels/panel.h"
#include "app/state/run_backups.h"

#include <filesystem>
#include <string>

namespace keyhole {

struct InterruptedRuns {
    std::filesystem::path spool;         ///< of the newest run, which the rest is about
    std::string words;                   ///< its model, and how its prompt begins; empty: not known
    std::string date;                    ///< when it was written last; empty: not known
    std::filesystem::path crash_report;  ///< of that time; empty: none
    bool asks = false;                   ///< whether it may be deleted
};

/// Draws nothing if there is no such run.
void draw_interrupted_runs(InterruptedRuns& panel, RunBackups& runs, const PanelContext& context);

}  // namespace keyhole
