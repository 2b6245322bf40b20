#include "app/study/eval_report.h"

#include "app/study/measure_report.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace keyhole {

namespace {

nlohmann::json number(double value) {
    return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(nullptr);
}

nlohmann::json pair(const Interval& interval) {
    return {number(interval.low), number(interval.high)};
}

/// Returns the value, but 0 for one that would print as -0.000.
double no_minus_zero(double value, int digits) {
    return std::abs(value) * std::pow(10, digits) < 0.5 ? 0 : value;
}

std::string range_text(const Interval& interval, double times, int digits, bool has_sign) {
    if (!std::isfinite(interval.low)) return "";
    const auto number = [&](double value) {
        return has_sign ? fmt::format("{:+.{}f}", no_minus_zero(times * value, digits), digits)
                        : fmt::format("{:.{}f}", times * value, digits);
    };
    return number(interval.low) + " .. " + number(interval.high);
}

std::string held_cell(const LaneScore& score) {
    return std::isfinite(score.held) ? fmt::format("{:.0f}", 100 * score.held) : "";
}

std::string task_line(const LaneScore& score, bool is_reference) {
    const Estimate &a = score.accuracy, &d = score.accuracy_difference, &n = score.nats_difference;
    std::string line = fmt::format(" {:>6} {:>7.1f} {:>14} {:>10.3f}", held_cell(score), 100 * a.value,
                                   range_text(a.interval, 100, 1, false), score.nats.value);
    if (!is_reference)
        line += fmt::format(" {:>+9.1f} {:>16} {:>+8.3f} {:>18}", no_minus_zero(100 * d.value, 1),
                            range_text(d.interval, 100, 1, true), no_minus_zero(n.value, 3),
                            range_text(n.interval, 1, 3, true));
    return line + "\n";
}

std::string text_line(const LaneScore& score, bool is_reference) {
    const Estimate& d = score.nats_difference;
    const bool known = score.n_questions > 1;
    std::string line = fmt::format(" {:>10.3f} {:>18} {:>9.4f}", score.perplexity,
                                   range_text(perplexity_interval(score), 1, 3, false), score.bits_per_byte);
    if (!is_reference) line += fmt::format(" {:>9.4f}", std::exp(d.value));
    if (!is_reference && known)
        line += fmt::format(
            " {:>18}", fmt::format("{:.4f} .. {:.4f}", std::exp(d.interval.low), std::exp(d.interval.high)));
    return line + "\n";
}

nlohmann::json lane_json(const QuestionSet& set, const ReportLanes& lanes, std::size_t lane,
                         const LaneScore& score) {
    const bool is_first = lane == lanes.against;
    nlohmann::json json = {{"spec", format_lane_spec(lanes.specs[lane])}, {"samples", score.n_questions}};
    if (!lanes.labels.empty()) json["lane"] = lanes.labels[lane];
    if (!lanes.kv_bytes.empty()) json["kv_bytes"] = std::round(lanes.kv_bytes[lane]);
    if (!lanes.peak_bytes.empty()) json["kv_peak_bytes"] = std::round(lanes.peak_bytes[lane]);
    if (std::isfinite(score.held)) json["held"] = score.held;
    if (set.is_task) {
        json["task"] = set.name;
        add_measures(json, set, score, is_first);
        json["accuracy"] = score.accuracy.value;
        json["accuracy_interval"] = pair(score.accuracy.interval);
        json["difference"] = score.accuracy_difference.value;
        json["difference_interval"] =
            is_first ? nlohmann::json() : nlohmann::json(pair(score.accuracy_difference.interval));
    } else {
        json["perplexity"] = number(score.perplexity);
        json["perplexity_interval"] = pair(perplexity_interval(score));
        json["bits_per_byte"] = number(score.bits_per_byte);
    }
    json["tokens"] = score.n_tokens;
    json["nats_per_token"] = number(score.nats.value);
    json["nats_difference"] = number(score.nats_difference.value);
    json["nats_difference_interval"] =
        is_first ? nlohmann::json() : nlohmann::json(pair(score.nats_difference.interval));
    return json;
}

}  // namespace

Interval perplexity_interval(const LaneScore& score) {
    return {std::exp(score.nats.interval.low), std::exp(score.nats.interval.high)};
}

std::vector<std::size_t> line_order(const ReportLanes& lanes, std::span<const LaneScore> scores) {
    std::vector<std::size_t> order(lanes.labels.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    const auto key = [&](std::size_t i) {
        if (lanes.sort == "right") return -scores[i].accuracy.value;
        if (lanes.sort == "nats") return scores[i].nats.value;
        return lanes.sort == "bytes" && !lanes.kv_bytes.empty() ? lanes.kv_bytes[i] : 0.0;
    };
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return key(a) < key(b); });
    return order;
}

int label_width(const ReportLanes& lanes) {
    std::size_t most = 4;
    for (const std::string& label : lanes.labels) most = std::max(most, label.size());
    return static_cast<int>(most);
}

std::string bytes_cell(const ReportLanes& lanes, std::size_t lane) {
    return lanes.kv_bytes.empty() ? "" : fmt::format(" {:>9.1f}", lanes.kv_bytes[lane] / 1000);
}

std::string bytes_header(const ReportLanes& lanes) {
    return lanes.kv_bytes.empty() ? "" : fmt::format(" {:>9}", "KV kB");
}

std::string against_text(const ReportLanes& lanes) {
    return lanes.against == 0 ? "" : fmt::format("Differences are to {}.\n", lanes.labels[lanes.against]);
}

std::string score_table(const QuestionSet& set, const ReportLanes& lanes, std::span<const LaneScore> scores) {
    if (!set.measures.empty()) return measure_table(set, lanes, scores);
    const std::string to = lanes.against == 0 ? "to first" : "differ";
    std::string table = fmt::format("{}: {}\n{}", set.name, set.description, against_text(lanes));
    table += fmt::format("{:<{}}{}", "lane", label_width(lanes), bytes_header(lanes));
    table += set.is_task ? fmt::format(" {:>6} {:>7} {:>14} {:>10} {:>9} {:>16} {:>8} {:>18}\n", "held %",
                                       "right %", "95 %", "nats/token", to, "95 %", "nats", "95 %")
                         : fmt::format(" {:>10} {:>18} {:>9} {:>9} {:>18}\n", "perplexity", "95 %",
                                       "bits/byte", lanes.against == 0 ? "x first" : "times", "95 %");
    for (const std::size_t i : line_order(lanes, scores))
        table += fmt::format("{:<{}}{}{}", lanes.labels[i], label_width(lanes), bytes_cell(lanes, i),
                             (set.is_task ? task_line : text_line)(scores[i], i == lanes.against));
    return table;
}

std::string ask_when_table(const QuestionSet& set, const ReportLanes& lanes,
                           std::span<const std::vector<Outcome>> before,
                           std::span<const std::vector<Outcome>> after) {
    constexpr std::string_view kAfter = "-after";
    if (!set.name.ends_with(kAfter) || before.empty()) return {};
    const std::string name = set.name.substr(0, set.name.size() - kAfter.size());
    std::string table = fmt::format(
        "{}: what it costs that a lane evicts before it sees the question\n{:<{}} {:>9} {:>9} {:>9} {:>16} "
        "{:>8} {:>18}\n",
        name, "lane", label_width(lanes), "before, %", "after, %", "differ", "95 %", "nats", "95 %");
    for (std::size_t i = 0; i < lanes.labels.size(); ++i) {
        const LaneScore score = score_lane(after[i], before[i]), seen = score_lane(before[i], before[i]);
        table +=
            fmt::format("{:<{}} {:>9.1f} {:>9.1f} {:>+9.1f} {:>16} {:>+8.3f} {:>18}\n", lanes.labels[i],
                        label_width(lanes), 100 * seen.accuracy.value, 100 * score.accuracy.value,
                        100 * score.accuracy_difference.value,
                        range_text(score.accuracy_difference.interval, 100, 1, true),
                        score.nats_difference.value, range_text(score.nats_difference.interval, 1, 3, true));
    }
    return table;
}

std::string reference_fails_text(const QuestionSet& set, const ReportLanes& lanes,
                                 std::span<const LaneScore> scores, std::string_view asks) {
    const LaneScore& first = scores[lanes.against];
    if (!set.is_task || first.n_questions == 0) return "";
    const bool fails = set.measures.empty()
                           ? first.accuracy.value == 0
                           : std::all_of(first.measures.begin(), first.measures.end(),
                                         [](const LaneScore::Measure& m) { return m.value.value == 0; });
    const bool another_answers = std::any_of(scores.begin(), scores.end(),
                                             [](const LaneScore& score) { return score.accuracy.value > 0; });
    if (!fails || another_answers) return "";
    const std::string_view remedy =
        !set.measures.empty()             ? "--answers FILE shows what it answers"
        : set.name.starts_with("passage") ? "the model may be too small for them"
        : asks == "data"     ? "try --chat with a model trained on instructions, or a larger model"
        : asks == "question" ? "many language models do not answer questions: try --ask statement, "
                               "or --chat with a model trained on instructions"
                             : "try a shorter --context, or a larger model";
    return fmt::format(
        "The {} lane, {}, answers none of {}: differences to it mean nothing; {}.\n",
        lanes.against == 0 ? "first" : "reference", lanes.labels[lanes.against],
        first.n_questions == 1 ? "1 question" : fmt::format("the {} questions", first.n_questions), remedy);
}

nlohmann::json score_json(std::span<const QuestionSet> sets, std::span<const ReportLanes> lanes,
                          std::span<const std::vector<LaneScore>> scores) {
    nlohmann::json json = {{"lanes", nlohmann::json::array()}};
    for (std::size_t set = 0; set < sets.size(); ++set)
        for (std::size_t lane = 0; lane < lanes[set].specs.size(); ++lane)
            json["lanes"].push_back(lane_json(sets[set], lanes[set], lane, scores[set][lane]));
    return json;
}

}  // namespace keyhole
