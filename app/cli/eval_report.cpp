#include "app/cli/eval_report.h"

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
    std::string table = fmt::format("{}: {}\n", set.name, set.description);
    table += set.is_task ? fmt::format("{:<44} {:>7} {:>14} {:>11} {:>9} {:>16}\n", "lane", "right %", "95 %",
                                       "nats/token", "to first", "95 %")
                         : fmt::format("{:<44} {:>10} {:>18} {:>9} {:>9} {:>18}\n", "lane", "perplexity",
                                       "95 %", "bits/byte", "x first", "95 %");
    for (std::size_t i = 0; i < labels.size(); ++i)
        table += (set.is_task ? task_line : text_line)(labels[i], scores[i], i == 0);
    return table;
}

std::string score_json(std::span<const QuestionSet> sets, std::span<const LaneSpec> lanes,
                       std::span<const std::vector<LaneScore>> scores) {
    nlohmann::json json = {{"lanes", nlohmann::json::array()}};
    for (std::size_t set = 0; set < sets.size(); ++set)
        for (std::size_t lane = 0; lane < lanes.size(); ++lane)
            json["lanes"].push_back(lane_json(sets[set], lanes[lane], scores[set][lane], lane == 0));
    return json.dump(2);
}

CurvePlot score_plot(const QuestionSet& set, std::span<const GridCell> cells,
                     std::span<const LaneScore> scores, std::span<const Vary> varies,
                     const std::string& model) {
    CurvePlot plot;
    plot.title = set.name + (set.is_task ? ": right answers" : ": perplexity");
    plot.subtitle = model;
    plot.caption = set.description + ". Bars are 95 % intervals.";
    plot.y_label = set.is_task ? "right answers, %" : "perplexity";
    const std::vector<std::string>& values = varies.front().values;
    const bool percent = values.front().ends_with('%');
    // Words, and tokens mixed with percent, have no axis of numbers.
    const bool are_words = std::any_of(values.begin(), values.end(), [&](const std::string& value) {
        return std::isnan(value_number(value)) || value.ends_with('%') != percent;
    });
    if (are_words) plot.x_words = values;
    const auto x_of = [&](const std::string& value) {
        return are_words
                   ? static_cast<double>(std::find(values.begin(), values.end(), value) - values.begin())
                   : value_number(value);
    };
    plot.x_label = varies.front().key + (percent && !are_words ? ", %" : "");
    plot.whole_x = false;
    double low = std::numeric_limits<double>::infinity(), high = -low;
    for (const std::string& value : values) {
        low = std::min(low, x_of(value));
        high = std::max(high, x_of(value));
    }
    if (are_words) low -= 0.5, high += 0.5;  // level lines from edge to edge
    plot.log_x = varies.front().geometric && low > 0;
    for (std::size_t i = 0; i < cells.size(); ++i) {
        const GridCell& cell = cells[i];
        std::string name = cell.lane;
        for (std::size_t v = 1; v < cell.values.size(); ++v)
            if (!cell.values[v].empty()) name += fmt::format(" {}={}", varies[v].key, cell.values[v]);
        auto curve = std::find_if(plot.curves.begin(), plot.curves.end(),
                                  [&](const Curve& known) { return known.name == name; });
        if (curve == plot.curves.end()) {
            plot.curves.push_back({name});
            curve = plot.curves.end() - 1;
        }
        const LaneScore& s = scores[i];
        const double y = set.is_task ? 100 * s.accuracy.value : s.perplexity;
        const Interval bar = set.is_task
                                 ? Interval{100 * s.accuracy.interval.low, 100 * s.accuracy.interval.high}
                                 : perplexity_interval(s);
        if (cell.values.empty() || cell.values.front().empty()) {  // not varied: a level line
            curve->threshold = true;
            curve->x = {low, high};
            curve->y = {y, y};
            continue;
        }
        curve->x.push_back(x_of(cell.values.front()));
        curve->y.push_back(y);
        curve->low.push_back(bar.low);
        curve->high.push_back(bar.high);
    }
    return plot;
}

}  // namespace keyhole
