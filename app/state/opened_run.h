/// A run that comes from a trace, with all that the window keeps of it: made beside the window's thread, for a long one takes seconds.
#pragma once

#include "app/state/annotations.h"
#include "engine/analysis/measure_curves.h"
#include "engine/policy/lane_spec.h"
#include "engine/trace/run_history.h"

#include <filesystem>
#include <functional>
#include <vector>

namespace keyhole {

struct OpenedRun {
    std::filesystem::path from;
    RunHistory history;
    MeasureCurves curves;
    Annotations annotations;
    std::vector<LaneSpec> lanes;  ///< of the last record
};

/// from: the trace of the records; empty: none. Throws Error(bad_file) for no records, Error(wrong_use) for lanes that are not known here.
OpenedRun opened_run(const StepList& steps, const std::filesystem::path& from);
/// tell: as read_trace. Throws as read_trace and opened_run.
OpenedRun open_run(const std::filesystem::path& trace, const std::function<bool(double)>& tell);

}  // namespace keyhole
