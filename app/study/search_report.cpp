#include "app/study/search_report.h"

#include "engine/base/counted.h"
#include "engine/base/csv_field.h"
#include "engine/eval/sign_flips.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace keyhole {

std::vector<std::size_t> SearchReport::ranked() const {
    std::vector<std::size_t> order(tried.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        const LaneScore &one = tried[a].score, &other = tried[b].score;
        if (by_measure && one.measures[*by_measure].value.value != other.measures[*by_measure].value.value)
            return one.measures[*by_measure].value.value > other.measures[*by_measure].value.value;
        if (by_right && one.accuracy.value != other.accuracy.value)
            return one.accuracy.value > other.accuracy.value;
        return !in_own_words && one.nats.value < other.nats.value;
    });
    return order;
}

namespace {

std::string tried_words(const SearchReport& report) {
    const auto n_wide =
        std::ranges::count_if(report.tried, [](const SearchTried& t) { return t.tried.is_wide; });
    const auto n_near = std::ssize(report.tried) - n_wide;
    std::string words = fmt::format(
        "{} lanes tried on {}, {} spread over the ranges and {} near the best; at most "
        "{:.1f} kB",
        report.tried.size(), counted(report.tried.front().score.n_questions, "question"), n_wide, n_near,
        report.total_bytes / 1000);
    if (report.n_refused > 0) words += fmt::format("; {} more did not fit or cannot be", report.n_refused);
    return words;
}

}  // namespace

std::string search_text(const SearchReport& report, std::size_t most) {
    std::string text = tried_words(report) + ".\n";
    text += fmt::format("{:>4} {:>10}", "", "KV kB");
    if (report.by_measure) text += fmt::format(" {:>10}", report.measures[*report.by_measure].name + " %");
    if (report.is_task) text += fmt::format(" {:>8}", "right %");
    if (!report.in_own_words) text += fmt::format(" {:>11}", "nats/token");
    for (const SearchRange& range : report.ranges) text += fmt::format("  {:>10}", range.name);
    text += "\n";
    const std::vector<std::size_t> order = report.ranked();
    const auto line = [&](std::size_t i, const std::string& rank) {
        const SearchTried& one = report.tried[i];
        text += fmt::format("{:>4} {:>10.1f}", rank, one.kv_bytes / 1000);
        if (report.by_measure)
            text += fmt::format(" {:>10.1f}", 100 * one.score.measures[*report.by_measure].value.value);
        if (report.is_task) text += fmt::format(" {:>8.1f}", 100 * one.score.accuracy.value);
        if (!report.in_own_words) text += fmt::format(" {:>11.3f}", one.score.nats.value);
        for (std::size_t k = 0; k < report.ranges.size(); ++k)
            text += fmt::format("  {:>{}}", one.tried.values[k],
                                std::max<std::size_t>(10, report.ranges[k].name.size()));
        text += i == 0 ? "  as given\n" : "\n";
    };
    for (std::size_t i = 0; i < std::min(most, order.size()); ++i) line(order[i], fmt::format("{}", i + 1));
    const auto given = std::ranges::find(order, std::size_t{0}) - order.begin();
    if (given >= std::ssize(order) || given >= static_cast<std::ptrdiff_t>(most))
        line(0, fmt::format("{}", given + 1));
    return text + fmt::format("The best: {}\n", format_lane_spec(report.tried[order.front()].tried.lane));
}

namespace {

/// What a search ranks by, of one lane on one set of questions.
struct SearchValue {
    double value = 0;
    Estimate gain;  ///< over the lane as given, above 0 where better
    std::string text;
};

SearchValue value_of(const SearchReport& report, const LaneScore& score) {
    const auto share = [](double value) { return fmt::format("{:.1f} %", 100 * value); };
    if (report.by_measure) {
        const LaneScore::Measure& measure = score.measures[*report.by_measure];
        return {measure.value.value, measure.difference,
                share(measure.value.value) + " " + report.measures[*report.by_measure].name};
    }
    if (report.by_right)
        return {score.accuracy.value, score.accuracy_difference, share(score.accuracy.value) + " right"};
    const Estimate& d = score.nats_difference;
    return {score.nats.value,
            {-d.value, {-d.interval.high, -d.interval.low}},
            fmt::format("{:.3f} nats", score.nats.value)};
}

}  // namespace

std::string held_out_text(const SearchReport& report) {
    constexpr double kSureZ = 1.96;
    if (report.held_out.size() < 3) return "No lane tried was better than the one given.\n";
    const SearchValue best = value_of(report, report.held_out[2]);
    const Interval& gain = best.gain.interval;
    std::string text =
        fmt::format("The best of {} on its own questions ({}) has {} on these: ", report.tried.size(),
                    value_of(report, report.tried[report.ranked().front()].score).text, best.text);
    if (gain.low > 0) return text + "better than as given.\n";
    if (gain.high < 0) return text + "worse than as given.\n";
    text += "whether it is better than as given stays open";
    const double half = (gain.high - gain.low) / 2;
    if (!(half > 0)) return text + ".\n";
    return text +
           fmt::format("; {}.\n", needed_text(samples_needed(kSureZ * best.gain.value / half,
                                                             report.held_out[2].n_questions),
                                              best.gain.value, report.is_task ? "questions" : "windows"));
}

std::string search_csv(const SearchReport& report) {
    std::string csv = "try,kind,kv_bytes,nats,nats_low,nats_high,right,questions";
    for (const MeasureKind& measure : report.measures) csv += "," + measure.name;
    for (const SearchRange& range : report.ranges) csv += "," + csv_field(range.name);
    csv += ",lane\n";
    for (std::size_t i = 0; i < report.tried.size(); ++i) {
        const SearchTried& one = report.tried[i];
        csv += fmt::format("{},{},{:.0f},{:.6g}", i + 1,
                           i == 0              ? "given"
                           : one.tried.is_wide ? "wide"
                                               : "near",
                           one.kv_bytes, one.score.nats.value);
        for (const double value : {one.score.nats.interval.low, one.score.nats.interval.high})
            csv += std::isfinite(value) ? fmt::format(",{:.6g}", value) : ",";
        csv += report.is_task ? fmt::format(",{:.6g}", one.score.accuracy.value) : ",";
        csv += fmt::format(",{}", one.score.n_questions);
        for (const LaneScore::Measure& measure : one.score.measures)
            csv += fmt::format(",{:.6g}", measure.value.value);
        for (const std::string& value : one.tried.values) csv += "," + csv_field(value);
        csv += "," + csv_field(format_lane_spec(one.tried.lane)) + "\n";
    }
    return csv;
}

nlohmann::json search_json(const SearchReport& report) {
    const std::vector<std::size_t> order = report.ranked();
    nlohmann::json json = {{"tried", report.tried.size()},
                           {"refused", report.n_refused},
                           {"bytes", report.total_bytes},
                           {"best", format_lane_spec(report.tried[order.front()].tried.lane)},
                           {"lanes", nlohmann::json::array()}};
    for (const std::size_t i : order) {
        const SearchTried& one = report.tried[i];
        nlohmann::json values;
        for (std::size_t k = 0; k < report.ranges.size(); ++k)
            values[report.ranges[k].name] = one.tried.values[k];
        nlohmann::json& lane =
            json["lanes"].emplace_back(nlohmann::json{{"spec", format_lane_spec(one.tried.lane)},
                                                      {"try", i + 1},
                                                      {"nats", one.score.nats.value},
                                                      {"right", one.score.accuracy.value},
                                                      {"kv_bytes", one.kv_bytes},
                                                      {"values", values}});
        for (std::size_t m = 0; m < report.measures.size(); ++m)
            lane["measures"][report.measures[m].name] = one.score.measures[m].value.value;
    }
    return json;
}

}  // namespace keyhole
