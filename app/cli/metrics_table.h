/// The measures of a run as a text table, a column a lane. Pure.
#pragma once

#include "engine/analysis/run_metrics.h"

#include <string>
#include <vector>

namespace keyhole {

/// Lines for the measures that some lane has, `-` where a lane has none. metrics: run_metrics(history).
std::string metrics_table(const RunHistory& history, const std::vector<LaneMetrics>& metrics);

}  // namespace keyhole
