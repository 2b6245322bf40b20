#include "app/cli/metrics_table.h"

#include "engine/analysis/measure_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

namespace keyhole {

namespace {

std::string number(double value, int digits) {
    return std::isnan(value) ? "-" : fmt::format("{:.{}f}", value, digits);
}

std::string title(const Measure& m) {
    return m.unit == "1" ? std::string(m.label) : fmt::format("{}, {}", m.label, m.unit);
}

}  // namespace

std::string metrics_table(const RunHistory& history, const std::vector<LaneMetrics>& metrics) {
    std::string out;
    const auto line = [&](const std::string& name, const std::function<std::string(std::size_t)>& cell) {
        std::vector<std::string> cells;
        for (std::size_t i = 0; i < metrics.size(); ++i) cells.push_back(cell(i));
        if (std::all_of(cells.begin(), cells.end(), [](const std::string& c) { return c == "-"; })) return;
        out += fmt::format("{:<28}", name);
        for (const std::string& c : cells) out += fmt::format(" {:>10}", c);
        out += '\n';
    };
    line("mean over a lane's steps", [](std::size_t i) { return fmt::format("lane {}", i); });
    line("", [&](std::size_t i) {
        const RunHistory::Lane& lane = history.lanes()[i];
        const std::string& spec = history.lane_record(lane.last_row, static_cast<int>(i))->info->spec;
        return spec.substr(0, std::min(spec.find(':'), std::size_t{10}));
    });
    for (const LaneMean& mean : lane_means()) {
        const std::string_view name = mean.name;
        const bool of_lane_0 = name == "kl" || name == "agreement";
        const int digits = name == "lifetime" ? 1 : 4;
        line(title(measure(name)), [&](std::size_t i) {
            return of_lane_0 && i == 0 ? std::string("-") : number(mean.of(metrics[i]), digits);
        });
        if (name == "agreement")
            line("  steps with lane 0's text", [&](std::size_t i) {
                return i == 0 ? "-" : fmt::format("{} of {}", metrics[i].n_compared, metrics[i].n_rows);
            });
        if (name == "retained_mass")
            line(title(measure("lost_mass")),
                 [&](std::size_t i) { return number(1 - metrics[i].retained_mass, 4); });
    }
    line(title(measure("first_divergence")), [&](std::size_t i) {
        return metrics[i].first_divergence ? fmt::format("{}", *metrics[i].first_divergence) : "-";
    });
    for (std::size_t other = 0; metrics.size() > 1 && other < metrics.size(); ++other)
        line(fmt::format("{}, lane {}", measure("jaccard").label, other), [&](std::size_t i) {
            return i == other ? std::string("-") : number(mean_of(metrics[i].jaccard[other]), 4);
        });
    return out;
}

}  // namespace keyhole
