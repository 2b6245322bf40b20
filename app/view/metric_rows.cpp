#include "app/view/metric_rows.h"

#include "engine/analysis/measure_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

namespace keyhole {

namespace {

std::string mean_text(double value, int digits) {
    return std::isnan(value) ? "-" : fmt::format("{:.{}f}", value, digits);
}

std::string label_of(const Measure& m) {
    return m.unit == "1" ? std::string(m.label) : fmt::format("{}, {}", m.label, m.unit);
}

}  // namespace

std::vector<MetricRow> metric_rows(const std::vector<LaneMetrics>& metrics) {
    std::vector<MetricRow> rows;
    const auto add = [&](const std::string& label, const std::function<std::string(std::size_t)>& cell) {
        MetricRow row{label, {}};
        for (std::size_t i = 0; i < metrics.size(); ++i) row.cells.push_back(cell(i));
        if (std::any_of(row.cells.begin(), row.cells.end(), [](const std::string& c) { return c != "-"; }))
            rows.push_back(std::move(row));
    };
    for (const LaneMean& mean : lane_means()) {
        const std::string_view name = mean.name;
        const bool of_lane_0 = name == "kl" || name == "agreement";
        const int digits = name == "lifetime" ? 1 : 4;
        add(label_of(measure(name)), [&](std::size_t i) {
            return of_lane_0 && i == 0 ? std::string("-") : mean_text(mean.of(metrics[i]), digits);
        });
        if (name == "agreement")
            add("  steps with lane 0's text", [&](std::size_t i) {
                return i == 0 ? "-" : fmt::format("{} of {}", metrics[i].n_compared, metrics[i].n_rows);
            });
        if (name == "retained_mass")
            add(label_of(measure("lost_mass")),
                [&](std::size_t i) { return mean_text(1 - metrics[i].retained_mass, 4); });
    }
    add(label_of(measure("first_divergence")), [&](std::size_t i) {
        return metrics[i].first_divergence ? fmt::format("{}", *metrics[i].first_divergence) : "-";
    });
    for (std::size_t other = 0; metrics.size() > 1 && other < metrics.size(); ++other)
        add(fmt::format("{}, lane {}", measure("jaccard").label, other), [&](std::size_t i) {
            return i == other ? std::string("-") : mean_text(mean_of(metrics[i].jaccard[other]), 4);
        });
    return rows;
}

}  // namespace keyhole
