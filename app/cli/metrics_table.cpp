#include "app/cli/metrics_table.h"

#include "app/view/metric_rows.h"

#include <fmt/format.h>

#include <algorithm>

namespace keyhole {

std::string metrics_table(const RunHistory& history, const std::vector<LaneMetrics>& metrics) {
    std::vector<MetricRow> rows(2);
    rows[0].label = "mean over a lane's steps";
    for (std::size_t i = 0; i < metrics.size(); ++i) {
        const RunHistory::Lane& lane = history.lanes()[i];
        const std::string& spec = history.lane_record(lane.last_row, static_cast<int>(i))->info->spec;
        rows[0].cells.push_back(fmt::format("lane {}", i));
        rows[1].cells.push_back(spec.substr(0, std::min(spec.find(':'), std::size_t{10})));
    }
    for (MetricRow& row : metric_rows(metrics)) rows.push_back(std::move(row));
    std::string out;
    for (const MetricRow& row : rows) {
        out += fmt::format("{:<28}", row.label);
        for (const std::string& cell : row.cells) out += fmt::format(" {:>10}", cell);
        out += '\n';
    }
    return out;
}

}  // namespace keyhole
