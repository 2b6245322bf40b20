#include "app/study/measure_report.h"

#include "app/study/eval_report.h"
#include "engine/base/error.h"
#include "engine/base/json_text.h"
#include "engine/base/mapped_file.h"
#include "engine/eval/answer_file.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

namespace keyhole {

namespace {

constexpr std::string_view kHeader =
    "questions,spec,measure,samples,value,low,high,difference,difference_low,difference_high,asked,made_by\n";
/// Of earlier versions, whose lines did not say what made them.
constexpr std::string_view kHeaderWithoutMaker =
    "questions,spec,measure,samples,value,low,high,difference,difference_low,difference_high,asked\n";
constexpr std::size_t kMostReportBytes = 256 << 20, kSpec = 1, kMeasure = 2, kAsked = 10, kFields = 12;

std::string span_text(const Interval& interval, bool is_difference) {
    if (!std::isfinite(interval.low)) return "";
    return is_difference ? fmt::format("{:+.1f} .. {:+.1f}", 100 * interval.low, 100 * interval.high)
                         : fmt::format("{:.1f} .. {:.1f}", 100 * interval.low, 100 * interval.high);
}

nlohmann::json estimate_json(const Estimate& estimate) {
    const auto number = [](double value) {
        return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(nullptr);
    };
    return {{"value", number(estimate.value)},
            {"interval", {number(estimate.interval.low), number(estimate.interval.high)}}};
}

std::string number_field(double value) {
    return std::isfinite(value) ? fmt::format("{:.6g}", value) : "";
}

/// Returns how many tokens the lanes' own answers have, on average.
std::string length_text(const QuestionSet& set, const ReportLanes& lanes, std::span<const LaneScore> scores) {
    if (!set.in_own_words) return "";
    std::string list;
    for (const std::size_t i : line_order(lanes, scores))
        list += fmt::format("{}{} {:.1f}", list.empty() ? "" : ", ", lanes.labels[i],
                            static_cast<double>(scores[i].n_tokens) / std::max(1, scores[i].n_questions));
    return fmt::format("tokens an answer: {}\n", list);
}

}  // namespace

std::string measure_table(const QuestionSet& set, const ReportLanes& lanes,
                          std::span<const LaneScore> scores) {
    const int width = label_width(lanes);
    std::string table = fmt::format("{}: {}\n{}", set.name, set.description, against_text(lanes));
    table += fmt::format("{:<{}}{} {:<10} {:>7} {:>14} {:>9} {:>16}\n", "lane", width, bytes_header(lanes),
                         "measure", "%", "95 %", lanes.against == 0 ? "to first" : "differ", "95 %");
    for (const std::size_t i : line_order(lanes, scores)) {
        std::string bytes = bytes_cell(lanes, i);
        for (std::size_t m = 0; m < set.measures.size(); ++m) {
            const LaneScore::Measure& measure = scores[i].measures[m];
            table += fmt::format("{:<{}}{} {:<10} {:>7.1f} {:>14}", m == 0 ? lanes.labels[i] : "", width,
                                 bytes, set.measures[m].name, 100 * measure.value.value,
                                 span_text(measure.value.interval, false));
            if (i != lanes.against)
                table += fmt::format(" {:>+9.1f} {:>16}", 100 * measure.difference.value,
                                     span_text(measure.difference.interval, true));
            table += "\n";
            bytes.assign(bytes.size(), ' ');
        }
    }
    return table + length_text(set, lanes, scores);
}

void add_measures(nlohmann::json& lane, const QuestionSet& set, const LaneScore& score, bool is_first) {
    double product = 1;
    int n_rouge = 0;
    for (std::size_t m = 0; m < set.measures.size(); ++m) {
        const std::string& name = set.measures[m].name;
        lane["measures"][name] = estimate_json(score.measures[m].value);
        lane["measures"][name]["difference"] =
            is_first ? nlohmann::json() : estimate_json(score.measures[m].difference);
        if (!name.starts_with("rouge")) continue;
        product *= score.measures[m].value.value;
        ++n_rouge;
    }
    if (n_rouge > 0) lane["rouge_geometric_mean"] = std::pow(product, 1.0 / n_rouge);
}

std::string answer_lines(const QuestionSet& set, const Asked& asked, std::span<const Outcome> outcomes) {
    std::string lines;
    for (std::size_t i = 0; i < outcomes.size(); ++i) {
        nlohmann::ordered_json line = {{"questions", set.name},
                                       {"question", asked.question},
                                       {"lane", format_lane_spec(asked.lanes[i])},
                                       {"answer", outcomes[i].text}};
        for (std::size_t m = 0; m < set.measures.size(); ++m)
            line[set.measures[m].name] = outcomes[i].measures[m];
        lines += line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
    }
    return lines;
}

MeasureTable::MeasureTable(std::filesystem::path path) : path_(std::move(path)) {
    std::error_code error;
    if (!std::filesystem::exists(path_, error)) return;
    const std::string text = read_text_file(path_, kMostReportBytes);
    std::string_view rest = text;
    const bool is_old = text.starts_with(kHeaderWithoutMaker);
    for (std::size_t number = 1; !rest.empty(); ++number) {
        std::string line(rest.substr(0, rest.find('\n')));
        rest.remove_prefix(std::min(line.size() + 1, rest.size()));
        if (is_old) line += number == 1 ? ",made_by" : ",";
        const std::vector<std::string> fields = split_csv(line);
        if (number == 1 ? fmt::format("{}\n", line) != kHeader : fields.size() != kFields)
            fail(ErrorCode::bad_file,
                 "{}:{} is no line of a sweep's measures: '{}'; move the file away or give another --out",
                 path_.string(), number, shown_text(line));
        if (number == 1) continue;
        const Key key = {fields[kAsked], fields[kSpec], fields[kMeasure]};
        if (lines_.emplace(key, line).second) order_.push_back(key);
    }
}

void MeasureTable::add(const QuestionSet& set, const std::string& asked, std::span<const GridCell> cells,
                       std::span<const LaneScore> scores, std::size_t against, const std::string& made_by) {
    for (std::size_t i = 0; i < cells.size(); ++i)
        for (std::size_t m = 0; m < set.measures.size(); ++m) {
            const LaneScore::Measure& measure = scores[i].measures[m];
            const std::string spec = format_lane_spec(cells[i].spec);
            const Key key = {asked, spec, set.measures[m].name};
            std::string line = fmt::format("{},{},{},{}", csv_field(set.name), csv_field(spec),
                                           set.measures[m].name, scores[i].n_questions);
            const auto add = [&](const Estimate& estimate, bool known) {
                for (const double value : {estimate.value, estimate.interval.low, estimate.interval.high})
                    line += "," + (known ? number_field(value) : "");
            };
            add(measure.value, true);
            add(measure.difference, i != against);
            line += "," + csv_field(asked) + "," + csv_field(made_by);
            if (lines_.insert_or_assign(key, std::move(line)).second) order_.push_back(key);
        }
}

void MeasureTable::write() const {
    std::string text(kHeader);
    for (const Key& key : order_) text += lines_.at(key) + "\n";
    write_text_file(path_, text);
}

}  // namespace keyhole
