#include "app/study/eval_report.h"

#include "app/study/measure_report.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

namespace keyhole {

namespace {

nlohmann::json number(double value) {
    return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(nullptr);
}

nlohmann::json pair(const Interval& interval) {
    return {number(interval.low), number(interval.high)};
}

std::string task_line(const std::string& lane, const LaneScore& score, bool is_first) {
    const Estimate &a = score.accuracy, &d = score.accuracy_difference;
    std::string line = fmt::format(
        "{:<44} {:>7.1f} {:>14} {:>11.3f}", lane, 100 * a.value,
        fmt::format("{:.1f} .. {:.1f}", 100 * a.interval.low, 100 * a.interval.high), score.nats.value);
    if (!is_first)
        line += fmt::format(" {:>+9.1f} {:>16}", 100 * d.value,
                            fmt::format("{:+.1f} .. {:+.1f}", 100 * d.interval.low, 100 * d.interval.high));
    return line + "\n";
}

std::string text_line(const std::string& lane, const LaneScore& score, bool is_first) {
    const Estimate& d = score.nats_difference;
    const bool known = score.n_questions > 1;
    const Interval interval = perplexity_interval(score);
    std::string line = fmt::format("{:<44} {:>10.3f} {:>18} {:>9.4f}", lane, score.perplexity,
                                   known ? fmt::format("{:.3f} .. {:.3f}", interval.low, interval.high) : "",
                                   score.bits_per_byte);
    if (!is_first) line += fmt::format(" {:>9.4f}", std::exp(d.value));
    if (!is_first && known)
        line += fmt::format(
            " {:>18}", fmt::format("{:.4f} .. {:.4f}", std::exp(d.interval.low), std::exp(d.interval.high)));
    return line + "\n";
}

nlohmann::json lane_json(const QuestionSet& set, const LaneSpec& lane, const LaneScore& score,
                         bool is_first) {
    nlohmann::json json = {{"spec", format_lane_spec(lane)}, {"samples", score.n_questions}};
    if (set.is_task) {
        json["task"] = set.name;
        add_measures(json, set, score, is_first);
        json["accuracy"] = score.accuracy.value;
        json["accuracy_interval"] = pair(score.accuracy.interval);
        json["difference"] = score.accuracy_difference.value;
        // The first lane is the reference.
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

std::string score_table(const QuestionSet& set, std::span<const std::string> labels,
                        std::span<const LaneScore> scores) {
    if (!set.measures.empty()) return measure_table(set, labels, scores);
    std::string table = fmt::format("{}: {}\n", set.name, set.description);
    table += set.is_task ? fmt::format("{:<44} {:>7} {:>14} {:>11} {:>9} {:>16}\n", "lane", "right %", "95 %",
                                       "nats/token", "to first", "95 %")
                         : fmt::format("{:<44} {:>10} {:>18} {:>9} {:>9} {:>18}\n", "lane", "perplexity",
                                       "95 %", "bits/byte", "x first", "95 %");
    for (std::size_t i = 0; i < labels.size(); ++i)
        table += (set.is_task ? task_line : text_line)(labels[i], scores[i], i == 0);
    return table;
}

std::string reference_fails_text(const QuestionSet& set, std::span<const std::string> labels,
                                 std::span<const LaneScore> scores, std::string_view asks) {
    const LaneScore& first = scores.front();
    if (!set.is_task || first.n_questions == 0) return "";
    const bool fails = set.measures.empty()
                           ? first.accuracy.value == 0
                           : std::all_of(first.measures.begin(), first.measures.end(),
                                         [](const LaneScore::Measure& m) { return m.value.value == 0; });
    if (!fails) return "";
    const std::string_view remedy = !set.measures.empty()   ? "--answers FILE shows what it answers"
                                    : set.name == "passage" ? "the model may be too small for them"
                                    : asks == "question"
                                        ? "many language models do not answer questions: try --ask statement"
                                        : "try a shorter --context, or a larger model";
    return fmt::format(
        "The first lane, {}, answers none of the {} questions: differences to it mean nothing; {}.\n",
        labels.front(), first.n_questions, remedy);
}

nlohmann::json score_json(std::span<const QuestionSet> sets, std::span<const LaneSpec> lanes,
                          std::span<const std::vector<LaneScore>> scores) {
    nlohmann::json json = {{"lanes", nlohmann::json::array()}};
    for (std::size_t set = 0; set < sets.size(); ++set)
        for (std::size_t lane = 0; lane < lanes.size(); ++lane)
            json["lanes"].push_back(lane_json(sets[set], lanes[lane], scores[set][lane], lane == 0));
    return json;
}

}  // namespace keyhole
