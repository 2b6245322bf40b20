/// The means over a run's lanes as a table of texts: what `decode`, `replay` and a page print. Any thread.
#pragma once

#include "engine/analysis/run_metrics.h"

#include <string>
#include <vector>

namespace keyhole {

struct MetricRow {
    std::string label;
    std::vector<std::string> cells;  ///< one a lane; "-": no value
};
/// Returns the rows in which some lane has a value.
std::vector<MetricRow> metric_rows(const std::vector<LaneMetrics>& metrics);

}  // namespace keyhole
