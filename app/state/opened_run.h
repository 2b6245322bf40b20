/// Builds a run from a trace, with everything that the window stores of it. Runs beside the window's thread,
/// since a long run takes seconds.
#pragma once

#include "app/state/annotations.h"
#include "app/state/trace_answers.h"
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
    bool follow = false;          ///< all lanes read lane 0's tokens, after the commands of the records
    TraceAnswers answers;         ///< that the trace holds
};

/// from: the trace file of the records; empty: none. Throws Error(bad_file) if there are no records, and
/// Error(wrong_use) for unknown lane specs.
OpenedRun opened_run(const StepList& steps, const std::filesystem::path& from);
/// Reads a trace and builds its run. progress: as for read_trace. Throws as read_trace and opened_run do.
OpenedRun open_run(const std::filesystem::path& trace, const std::function<bool(double)>& progress);

}  // namespace keyhole
