#include "app/cli/metrics_table.h"

#include "app/view/metric_rows.h"
#include "engine/base/utf8.h"

#include <fmt/format.h>

#include <algorithm>

namespace keyhole {

namespace {

/// Returns what stands above a lane's column: its name, or its preset.
std::string column_name(const std::string& spec) {
    constexpr std::size_t kMost = 10;
    const std::string before = spec.substr(0, spec.find(':'));
    const std::string_view name = std::string_view(before).substr(0, before.find('='));
    std::size_t end = 0;
    while (end < name.size() && end + utf8_length(name.substr(end)) <= kMost)
        end += std::max<std::size_t>(1, utf8_length(name.substr(end)));
    return std::string(name.substr(0, end));
}

}  // namespace

std::string metrics_table(const RunHistory& history, const std::vector<LaneMetrics>& all) {
    constexpr std::size_t kMostColumns = 16;  // columns that a wide terminal shows
    const std::vector<LaneMetrics> metrics(
        all.begin(), all.begin() + static_cast<std::ptrdiff_t>(std::min(all.size(), kMostColumns)));
    std::vector<MetricRow> rows(2);
    rows[0].label = "mean over a lane's steps";
    for (std::size_t i = 0; i < metrics.size(); ++i) {
        const RunHistory::Lane& lane = history.lanes()[i];
        const std::string& spec = history.lane_record(lane.last_row, static_cast<int>(i))->info->spec;
        rows[0].cells.push_back(fmt::format("lane {}", i));
        rows[1].cells.push_back(column_name(spec));
    }
    for (MetricRow& row : metric_rows(metrics)) rows.push_back(std::move(row));
    std::string out;
    for (const MetricRow& row : rows) {
        out += fmt::format("{:<28}", row.label);
        for (const std::string& cell : row.cells) out += fmt::format(" {:>10}", cell);
        out += '\n';
    }
    if (all.size() > kMostColumns)
        out += fmt::format("the table shows {} of {} lanes; --json has the measures of all\n", kMostColumns,
                           all.size());
    return out;
}

}  // namespace keyhole
