/// Formats the measures of a run as a text table with one column a lane.
/// Pure; any thread; computes no measures itself.
#pragma once

#include "engine/analysis/run_metrics.h"

#include <string>
#include <vector>

namespace keyhole {

/// Returns one line for each measure that at least one lane has; `-` marks a missing value. metrics:
/// run_metrics(history).
std::string metrics_table(const RunHistory& history, const std::vector<LaneMetrics>& metrics);

}  // namespace keyhole
