#include "app/study/suite_page.h"

#include "engine/base/index.h"
#include "engine/figure/drawing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>

namespace keyhole {

namespace {

constexpr double kKept = 0.9;

std::string kept_line(const ReportLanes& lanes, std::span<const SuiteTask> tasks) {
    const double reference = suite_mean(tasks, lanes.against);
    if (!(reference > 0)) return "";
    std::string list;
    for (const std::size_t i : smallest_that_keep(lanes, tasks, kKept))
        list += fmt::format("{}{} ({:.1f} kB)", list.empty() ? "" : ", ", lanes.labels[i],
                            lanes.kv_bytes[i] / 1000);
    return fmt::format("Least memory that keeps {:.0f} % of {} ({:.1f} kB): {}.", 100 * kKept,
                       lanes.labels[lanes.against], lanes.kv_bytes[lanes.against] / 1000,
                       list.empty() ? "none of these lanes" : list);
}

std::string mean_cell(double mean) {
    return std::isfinite(mean) ? fmt::format("{:.1f}", 100 * mean) : "";
}

}  // namespace

double suite_mean(std::span<const SuiteTask> tasks, std::size_t lane) {
    double sum = 0;
    int n = 0;
    for (const SuiteTask& task : tasks) {
        if (task.scores.empty()) continue;
        sum += task.scores[lane].accuracy.value;
        ++n;
    }
    return n == 0 ? std::nan("") : sum / n;
}

std::vector<std::size_t> smallest_that_keep(const ReportLanes& lanes, std::span<const SuiteTask> tasks,
                                            double share) {
    const double wanted = share * suite_mean(tasks, lanes.against);
    std::map<Preset, std::size_t> best;
    for (std::size_t i = 0; i < lanes.specs.size(); ++i) {
        const Preset preset = lanes.specs[i].policy.preset;
        const bool is_bound = preset == Preset::random || preset == Preset::oracle;
        if (i == lanes.against || is_bound || !(suite_mean(tasks, i) >= wanted)) continue;
        const auto [at, is_new] = best.emplace(preset, i);
        if (!is_new && lanes.kv_bytes[i] < lanes.kv_bytes[at->second]) at->second = i;
    }
    std::vector<std::size_t> found;
    for (const auto& [preset, lane] : best) found.push_back(lane);
    std::sort(found.begin(), found.end());
    return found;
}

std::string least_memory_text(const QuestionSet& set, const ReportLanes& lanes,
                              std::span<const LaneScore> scores) {
    if (!set.is_task || scores.size() < 2 || lanes.kv_bytes.size() != scores.size()) return "";
    const SuiteTask task{set.name, {scores.begin(), scores.end()}, {}};
    const std::string line = kept_line(lanes, std::span(&task, 1));
    return line.empty() ? "" : line + "\n";
}

std::string suite_text(const ReportLanes& lanes, std::span<const SuiteTask> tasks) {
    constexpr int kTask = 20;
    std::string text = "right answers, %\n";
    for (std::size_t i = 0; i < lanes.labels.size(); ++i)
        text += fmt::format("{:>3} {}\n", i + 1, lanes.labels[i]);
    text += fmt::format("{:<{}}", "task", kTask);
    for (std::size_t i = 0; i < lanes.labels.size(); ++i) text += fmt::format(" {:>6}", i + 1);
    text += "\n";
    for (const SuiteTask& task : tasks) {
        text += fmt::format("{:<{}}", task.name, kTask);
        for (const LaneScore& score : task.scores)
            text += fmt::format(" {:>6.1f}", 100 * score.accuracy.value);
        text += task.scores.empty() ? fmt::format(" skipped: {}\n", task.skipped) : "\n";
    }
    text += fmt::format("{:<{}}", "mean", kTask);
    for (std::size_t i = 0; i < lanes.labels.size(); ++i)
        text += fmt::format(" {:>6}", mean_cell(suite_mean(tasks, i)));
    text += fmt::format("\n{:<{}}", "KV kB", kTask);
    for (const double bytes : lanes.kv_bytes) text += fmt::format(" {:>6.0f}", bytes / 1000);
    const std::string kept = kept_line(lanes, tasks);
    return text + "\n" + (kept.empty() ? "" : kept + "\n");
}

std::string suite_page_begin(const std::string& title) {
    return fmt::format("<!doctype html>\n<meta charset=\"utf-8\">\n<title>{}</title>\n", escape_xml(title));
}

std::string suite_page(const ReportLanes& lanes, std::span<const SuiteTask> tasks, const std::string& title,
                       std::span<const std::string> about, const std::string& below) {
    std::string page = suite_page_begin(title);
    page += fmt::format(
        "<style>\n"
        "body {{ font: 15px/1.5 sans-serif; margin: 2em auto; max-width: 70em; padding: 0 1em; color: #111; "
        "background: #fff }}\ntable {{ border-collapse: collapse }}\n"
        "th, td {{ padding: .25em .7em; text-align: right; border-bottom: 1px solid #ddd }}\n"
        "th:first-child, td:first-child {{ text-align: left }}\nsmall {{ color: #555 "
        "}}\n</style>\n<h1>{0}</h1>\n",
        escape_xml(title));
    for (const std::string& line : about) page += fmt::format("<p>{}</p>\n", escape_xml(line));
    page += "<table>\n<tr><th>right answers, %</th>";
    for (const std::string& label : lanes.labels) page += fmt::format("<th>{}</th>", escape_xml(label));
    page += "</tr>\n";
    for (const SuiteTask& task : tasks) {
        page += fmt::format("<tr><td>{}</td>", escape_xml(task.name));
        for (const LaneScore& score : task.scores)
            page +=
                fmt::format("<td>{:.1f}<br><small>{:.0f} .. {:.0f}</small></td>", 100 * score.accuracy.value,
                            100 * score.accuracy.interval.low, 100 * score.accuracy.interval.high);
        if (task.scores.empty())
            page += fmt::format("<td colspan=\"{}\">skipped: {}</td>", lanes.labels.size(),
                                escape_xml(task.skipped));
        page += "</tr>\n";
    }
    page += "<tr><td><b>mean</b></td>";
    for (std::size_t i = 0; i < lanes.labels.size(); ++i)
        page += fmt::format("<td><b>{}</b></td>", mean_cell(suite_mean(tasks, i)));
    page += "</tr>\n<tr><td>K and V after the text, kB</td>";
    for (const double bytes : lanes.kv_bytes) page += fmt::format("<td>{:.1f}</td>", bytes / 1000);
    page += "</tr>\n</table>\n";
    page += fmt::format("<p>{} Small numbers are 95 % intervals (Wilson).</p>\n",
                        escape_xml(kept_line(lanes, tasks)));
    if (below.empty()) return page;
    page += "<pre>";
    std::istringstream lines(below);
    for (std::string line; std::getline(lines, line);) page += escape_xml(line) + "\n";
    return page + "</pre>\n";
}

}  // namespace keyhole
