#include "app/study/span_report.h"

#include "engine/base/csv_field.h"
#include "engine/base/json_text.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

namespace keyhole {

namespace {

constexpr double kShownLoss = 0.005;  // less is 0 in the table

const SpanReport::Line* most_lost(const SpanReport& lane) {
    const auto at =
        std::ranges::min_element(lane.lines, {}, [](const SpanReport::Line& line) { return line.span.held; });
    return at == lane.lines.end() || at->span.held > 1 - kShownLoss ? nullptr : &*at;
}

std::string right_cell(const SpanReport::Line& line) {
    if (line.n_asked == 0) return "";
    const std::string nats = std::isnan(line.nats.value) ? "" : fmt::format(" {:>7.3f}", line.nats.value);
    return fmt::format(
        " {:>6} {:>8.1f} {:>14}{}", line.n_asked, 100 * line.right.value,
        fmt::format("{:.1f} .. {:.1f}", 100 * line.right.interval.low, 100 * line.right.interval.high), nats);
}

}  // namespace

std::vector<SpanReport> span_reports(const ReportLanes& lanes, std::span<const LaneSpans> spans,
                                     std::span<const std::string> asks_for,
                                     std::span<const std::vector<Outcome>> outcomes, bool has_nats) {
    std::vector<SpanReport> reports;
    for (std::size_t lane = 0; lane < spans.size(); ++lane) {
        SpanReport& report = reports.emplace_back(SpanReport{lanes.labels[lane], lanes.specs[lane], {}});
        for (const SpanMeasures& span : spans[lane].spans) {
            SpanReport::Line& line = report.lines.emplace_back(SpanReport::Line{span});
            std::vector<double> nats;
            for (std::size_t i = 0; i < asks_for.size(); ++i) {
                if (asks_for[i] != span.name) continue;
                ++line.n_asked;
                line.n_right += outcomes[lane][i].right ? 1 : 0;
                nats.push_back(has_nats ? outcomes[lane][i].nats : std::nan(""));
            }
            line.nats = nats.empty() ? Estimate{} : mean_estimate(nats);
            if (line.n_asked > 0)
                line.right = {static_cast<double>(line.n_right) / line.n_asked,
                              wilson_interval(line.n_right, line.n_asked)};
        }
    }
    return reports;
}

std::string span_text(std::span<const SpanReport> lanes) {
    std::string text;
    for (const SpanReport& lane : lanes) {
        if (lane.lines.empty()) continue;
        const bool asks = std::ranges::any_of(lane.lines, [](const auto& line) { return line.n_asked > 0; });
        std::size_t width = 8;
        for (const SpanReport::Line& line : lane.lines)
            width = std::max(width, printable_text(line.span.name).size());
        text += fmt::format("\n{}, spans of the prompt\n{:<{}} {:>8} {:>7} {:>10} {:>7}", lane.label, "span",
                            width, "tokens", "held %", "in full %", "lost %");
        const bool has_nats = std::ranges::any_of(lane.lines, [](const SpanReport::Line& line) {
            return line.n_asked > 0 && !std::isnan(line.nats.value);
        });
        text += asks ? fmt::format(" {:>6} {:>8} {:>14}{}\n", "asked", "right %", "95 %",
                                   has_nats ? "    nats" : "")
                     : "\n";
        for (const SpanReport::Line& line : lane.lines)
            text +=
                fmt::format("{:<{}} {:>8.1f} {:>7.1f} {:>10.1f} {:>7.1f}{}\n", printable_text(line.span.name),
                            width, line.span.n_tokens, 100 * line.span.held, 100 * line.span.full_attention,
                            100 * line.span.lost, right_cell(line));
        if (const SpanReport::Line* line = most_lost(lane))
            text += fmt::format("It lost most of {}: {:.1f} % of its tokens are gone.\n",
                                printable_text(line->span.name), 100 * (1 - line->span.held));
    }
    return text;
}

std::string span_csv(const std::string& questions, std::span<const SpanReport> lanes) {
    std::string csv =
        "questions,lane,spec,span,tokens,held,full_attention,lost,asked,right,right_low,right_high,nats,"
        "nats_low,nats_high\n";
    for (const SpanReport& lane : lanes)
        for (const SpanReport::Line& line : lane.lines) {
            csv += fmt::format("{},{},{},{},{:.6g},{:.6g},{:.6g},{:.6g},{}", csv_field(questions),
                               csv_field(lane.label), csv_field(format_lane_spec(lane.lane)),
                               csv_field(line.span.name), line.span.n_tokens, line.span.held,
                               line.span.full_attention, line.span.lost, line.n_asked);
            csv += line.n_asked == 0 ? ",,,"
                                     : fmt::format(",{:.6g},{:.6g},{:.6g}", line.right.value,
                                                   line.right.interval.low, line.right.interval.high);
            for (const double nats : {line.nats.value, line.nats.interval.low, line.nats.interval.high})
                csv += line.n_asked > 0 && std::isfinite(nats) ? fmt::format(",{:.6g}", nats) : ",";
            csv += "\n";
        }
    return csv;
}

nlohmann::json span_json(const std::string& questions, std::span<const SpanReport> lanes) {
    nlohmann::json json = nlohmann::json::array();
    for (const SpanReport& lane : lanes)
        for (const SpanReport::Line& line : lane.lines) {
            nlohmann::json one = {{"questions", questions}, {"lane", lane.label},
                                  {"span", line.span.name}, {"tokens", line.span.n_tokens},
                                  {"held", line.span.held}, {"full_attention", line.span.full_attention},
                                  {"lost", line.span.lost}, {"asked", line.n_asked}};
            if (line.n_asked > 0) {
                one["right"] = line.right.value;
                one["right_interval"] = {line.right.interval.low, line.right.interval.high};
                if (std::isfinite(line.nats.value)) one["nats"] = line.nats.value;
                if (std::isfinite(line.nats.interval.low))
                    one["nats_interval"] = {line.nats.interval.low, line.nats.interval.high};
            }
            json.push_back(std::move(one));
        }
    return json;
}

}  // namespace keyhole
