#include "app/cli/bench_run.h"

#include "app/cli/output.h"
#include "app/papers/figure.h"
#include "engine/base/error.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace keyhole {

namespace {

/// The result of one table line, and the bytes of its weights.
struct PaperResult {
    BenchLine line;
    std::int64_t weight_bytes = 0;
};

/// Returns how many lanes fit into 12 GB beside the weights, counted as in MLKV's figure 3.
std::int64_t largest_batch(const PaperResult& result) {
    const double left = 12e9 - static_cast<double>(result.weight_bytes);
    const BenchLine& line = result.line;
    return static_cast<std::int64_t>(left / (line.allocated_bytes / line.n_lanes));
}

/// Returns whether a group shows what the paper found.
PaperVerdict verdict_of(const PaperRun& run, const PaperGroup& group,
                        const std::vector<std::optional<PaperResult>>& lines) {
    if (!lines.front()) return {};
    std::vector<SpeedLine> there;
    for (std::size_t i = 0; i < lines.size(); ++i) {
        if (!lines[i]) continue;
        const BenchLine& line = lines[i]->line;
        SpeedLine& out = there.emplace_back();
        out = {group.lines[i].label, group.lines[i].printed, line.tokens_per_s,
               speed_up(line, lines.front()->line).by_bytes, static_cast<double>(largest_batch(*lines[i]))};
        if (!line.has_parts) continue;
        out.attention_ms =
            1e3 * line.parts.attention / static_cast<double>(std::max<std::int64_t>(1, line.parts.n_steps));
        out.step_ms = line.ms_per_step;
    }
    return judge_speed(run.name, there);
}

void print_backend(const BenchedModel& benched) {
    print_out("{}, {}\n", benched.model->path().string(), benched.backend_text);
    if (const std::string text = benched.backend->weights_text(); !text.empty()) print_out("{}\n", text);
}

void print_group(const BenchRun& options, const PaperRun& run, const PaperGroup& group,
                 const std::vector<std::optional<PaperResult>>& lines,
                 const std::vector<std::string>& reasons) {
    print_out("\n{:<34} {:>10} {:>10} {:>9} {:>9} {:>9} {:>8} {:>18}\n", group.title, "paper", "tokens/s",
              "ms/step", "KV MB", "GB/s", "share", "x first (by bytes)");
    const std::optional<PaperResult>& first = lines.front();
    for (std::size_t i = 0; i < lines.size(); ++i) {
        const PaperLine& line = group.lines[i];
        if (!lines[i]) {
            print_out("{:<34} {:>10} {}\n", line.label, line.printed, reasons[i]);
            continue;
        }
        const BenchLine& l = lines[i]->line;
        const SpeedUp up = first ? speed_up(l, first->line) : SpeedUp{NAN, NAN};
        print_out("{:<34} {:>10} {:>10.1f} {:>9.3f} {:>9.1f} {:>9.2f} {:>7.0f}% {:>8.2f} ({:.2f})",
                  line.label, line.printed, l.tokens_per_s, l.ms_per_step,
                  1e-6 * static_cast<double>(l.kv_bytes), l.gb_per_s, 100 * l.share_of_bandwidth, up.measured,
                  up.by_bytes);
        if (run.name == "mlkv-figure3" && options.scale.tokens == 1 && options.scale.layers == 0)
            print_out("   {} lanes in 12 GB", largest_batch(*lines[i]));
        print_out("\n");
    }
    std::vector<BenchLine> there;
    for (const auto& line : lines)
        if (line) there.push_back(line->line);
    if (run.parts) print_step_parts(there);
    if (const std::string text = verdict_text(verdict_of(run, group, lines)); !text.empty())
        print_out("{}\n", text);
}

/// Benches one group of a paper's table. A line that does not fit gives its reason instead. progress: counts
/// the table's lines; n_before are of earlier groups.
nlohmann::json bench_group(const BenchRun& options, const PaperRun& run, const PaperGroup& group,
                           const ModelShape& shape, std::optional<BenchedModel>& benched, KvShape& there,
                           Progress& progress, double n_before) {
    std::vector<std::optional<PaperResult>> lines(group.lines.size());
    std::vector<std::string> reasons(group.lines.size());
    std::optional<LaunchCounts> graphs;  // of all models
    nlohmann::json json = {{"title", group.title}, {"lines", nlohmann::json::array()}};
    // Runs the lines of one model in turn, so that their ratios are comparable.
    for (std::size_t begin = 0; begin < group.lines.size();) {
        std::size_t end = begin + 1;
        while (end < group.lines.size() && group.lines[end].n_kv_heads == group.lines[begin].n_kv_heads &&
               group.lines[end].n_kv_layers == group.lines[begin].n_kv_layers)
            ++end;
        std::deque<Contender> contenders;
        std::vector<std::size_t> line_of;
        for (std::size_t i = begin; i < end; ++i) try {
                const PaperLine& line = group.lines[i];
                const ModelShape wanted = with_kv_heads(shape, line);
                if (!benched || there != kv_shape(wanted.config)) {
                    const bool is_first = !benched;
                    benched.reset();
                    benched = benched_shape(options, wanted);
                    if (is_first) note_precision(*benched->backend);  // the same for all of them
                    there = kv_shape(wanted.config);
                    if (!options.json) print_backend(*benched);
                }
                add_contender(contenders, *benched,
                              contender_setup(line.lane, line.n_lanes, line.context, options.run.n_tokens));
                line_of.push_back(i);
            } catch (const Error& error) {
                if (error.code() != ErrorCode::no_memory && error.code() != ErrorCode::unsupported) throw;
                reasons[i] = error.what();
            }
        if (!contenders.empty()) {
            const std::optional<LaunchCounts> before = benched->backend->launch_counts();
            const BenchReport report =
                run_rounds(options, *benched, contenders, run.parts || options.parts, progress,
                           n_before + static_cast<double>(begin), n_before + static_cast<double>(end));
            for (std::size_t i = 0; i < line_of.size(); ++i)
                lines[line_of[i]] = PaperResult{report.lines[i], report.weight_bytes};
            if (before) graphs = graphs.value_or(LaunchCounts{}) + (*report.launches - *before);
        }
        begin = end;
    }
    for (std::size_t i = 0; i < lines.size(); ++i) {
        nlohmann::json of_line =
            lines[i] ? json_of_line(lines[i]->line, lines[0] ? lines[0]->line : lines[i]->line)
                     : nlohmann::json{{"reason", reasons[i]}};
        of_line["label"] = group.lines[i].label;
        of_line["paper"] = group.lines[i].printed;
        json["lines"].push_back(std::move(of_line));
    }
    const PaperVerdict verdict = verdict_of(run, group, lines);
    json["verdict"] = verdict_word(verdict.state);
    json["why"] = verdict.why;
    if (graphs) json["graphs"] = json_of_graphs(*graphs);
    if (!options.json && benched) print_group(options, run, group, lines, reasons);
    if (!options.json && graphs) print_graphs(*graphs);
    if (!options.json && !benched)
        for (std::size_t i = 0; i < lines.size(); ++i)
            print_out("{}: {}\n", group.lines[i].label, reasons[i]);
    return json;
}

}  // namespace

void bench_paper(const BenchRun& options) {
    PaperRun run = paper_run(options.paper);
    ModelShape shape = shape_of(options.shape.empty() ? run.shape : options.shape);
    std::string scaled = scale_down(run, shape, options.scale);
    if (!options.shape.empty() && options.shape != run.shape)
        scaled =
            fmt::format("{} instead of {}{}{}", options.shape, run.shape, scaled.empty() ? "" : ", ", scaled);
    nlohmann::json json = {{"paper", run.name},
                           {"source", run.source},
                           {"unit", run.unit},
                           {"scaled", scaled},
                           {"shape", shape.name},
                           {"dtype", options.dtype},
                           {"groups", nlohmann::json::array()}};
    if (!options.json)
        print_out(
            "{}\nThe paper's column: {}. Here decoding alone is timed, in the middle of the paper's "
            "run.\nScaled down: {}\n",
            run.source, run.unit, scaled.empty() ? "nothing" : scaled);
    flush_output();
    std::optional<BenchedModel> benched;
    KvShape there;
    double n_lines = 0, n_done = 0;
    for (const PaperGroup& group : run.groups) n_lines += static_cast<double>(group.lines.size());
    Progress progress("bench", n_lines);
    for (const PaperGroup& group : run.groups) {
        progress.set_part(group.title);
        json["groups"].push_back(bench_group(options, run, group, shape, benched, there, progress, n_done));
        n_done += static_cast<double>(group.lines.size());
        flush_output();
    }
    if (options.json) print_out("{}\n", json.dump(2));
}

}  // namespace keyhole
