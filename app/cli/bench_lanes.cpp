#include "app/cli/bench_run.h"

#include "app/cli/output.h"
#include "engine/base/index.h"
#include "engine/base/mapped_file.h"
#include "engine/base/resource_use.h"

#include <algorithm>
#include <chrono>

namespace keyhole {

namespace {

void print_lines(const std::vector<BenchLine>& lines) {
    print_out("{:<44} {:>9} {:>10} {:>8} {:>9} {:>9} {:>8} {:>7} {:>7} {:>18}\n", "lane", "ms/step",
              "tokens/s", "p99/p50", "KV MB", "MB/token", "GB/s", "bare", "share", "x first (by bytes)");
    for (const BenchLine& l : lines) {
        const SpeedUp up = speed_up(l, lines.front());
        print_out(
            "{:<44} {:>9.3f} {:>10.1f} {:>8.2f} {:>9.2f} {:>9.2f} {:>8.2f} {:>7.2f} {:>6.0f}% {:>8.2f} "
            "({:.2f})\n",
            l.name, l.ms_per_step, l.tokens_per_s, l.p99_over_p50, 1e-6 * static_cast<double>(l.kv_bytes),
            1e-6 * static_cast<double>(l.bytes_per_step) / l.n_lanes, l.gb_per_s, l.bandwidth,
            100 * l.share_of_bandwidth, up.measured, up.by_bytes);
    }
}

nlohmann::json head_of(const BenchedModel& benched, const BenchReport& report) {
    return {{"model", benched.model->path().string()},
            {"backend", benched.backend->name()},
            {"weight_bytes", report.weight_bytes},
            {"bandwidth", benched.bandwidth->what()},
            {"cpu_share_of_others", report.share_of_others},
            {"weights", benched.backend->weights_text()},
            {"lanes", nlohmann::json::array()}};
}

void print_head(const BenchedModel& benched, const BenchReport& report) {
    print_out(
        "{}, {}\n{:.2f} MB of weights a step; bare: {}; other processes took {:.0f} % of the busy time\n",
        benched.model->path().string(), benched.backend_text, 1e-6 * static_cast<double>(report.weight_bytes),
        benched.bandwidth->what(), 100 * report.share_of_others);
    if (const std::string text = benched.backend->weights_text(); !text.empty()) print_out("{}\n", text);
    print_out("\n");
}

struct TokenizerSpeed {
    std::size_t n_bytes = 0, n_tokens = 0;
    double seconds_per_megabyte = 0;  // median over rounds
};

TokenizerSpeed measure_tokenizer(const Tokenizer& tokenizer, const std::string& file, int n_rounds) {
    const std::string text = read_input_text(file);
    TokenizerSpeed speed{text.size(), 0, 0};
    std::vector<double> seconds;
    for (int round = 0; round < n_rounds; ++round) {
        const auto start = std::chrono::steady_clock::now();
        speed.n_tokens = tokenizer.encode(text).size();
        seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    speed.seconds_per_megabyte =
        1e6 * median(seconds) / static_cast<double>(std::max<std::size_t>(1, text.size()));
    return speed;
}

}  // namespace

/// Benches the lanes as given; on request each also without scores, and instrumented.
void bench_lanes(const BenchRun& options) {
    BenchedModel benched = benched_model(options);
    std::deque<Contender> contenders;
    struct Versus {
        std::size_t with, without;
    };
    std::vector<Versus> scores, rows;
    for (const std::string& spec : specs_of(options)) {
        ContenderSetup plain = contender_setup(spec, options.batch, options.context, options.run.n_tokens);
        ContenderSetup without = plain, instrumented = plain;
        plain.keeps = options.scores;
        const std::size_t first = contenders.size();
        add_contender(contenders, benched, std::move(plain));
        if (options.scores) {
            without.name = spec + " -scores";
            without.follows = &contenders.back();
            scores.push_back({contenders.size() - 1, contenders.size()});
            add_contender(contenders, benched, std::move(without));
        }
        if (!options.instrument) continue;
        instrumented.name = spec + " +rows";
        instrumented.requested.attention = instrumented.requested.scores = true;
        instrumented.requested.form = RowForm::packed;
        rows.push_back({contenders.size(), first});
        add_contender(contenders, benched, std::move(instrumented));
    }
    const BenchReport report = [&] {
        Progress progress("bench", 1);
        return run_rounds(options, benched, contenders, options.parts, progress);
    }();
    nlohmann::json json = head_of(benched, report);
    json["context"] = options.context;
    json["batch"] = options.batch;
    for (const BenchLine& line : report.lines) {
        json["lanes"].push_back(json_of_line(line, report.lines.front()));
        for (const PartRead& read : part_reads(line))
            json["lanes"].back()["reads"][read.part] = {{"bytes", read.n_bytes},
                                                        {"gb_per_s", read.gb_per_s},
                                                        {"share_of_bandwidth", read.share_of_bandwidth}};
    }
    if (!options.json) {
        print_head(benched, report);
        print_out("context {}, batch {}, {} tokens in {} rounds\n", options.context, options.batch,
                  std::max(1, options.run.n_tokens / options.rounds) * options.rounds, options.rounds);
        print_lines(report.lines);
        print_step_parts(report.lines);
    }
    if (const auto& counts = report.launches) {
        json["graphs"] = json_of_graphs(*counts);
        if (!options.json) print_graphs(*counts);
    }
    for (const Versus& v : scores) {
        const double ratio = report.lines[v.with].ms_per_step / report.lines[v.without].ms_per_step;
        const bool same = contenders[v.with].digests() == contenders[v.without].digests();
        json["scores"].push_back(
            {{"spec", report.lines[v.with].name}, {"time_over_no_scores", ratio}, {"same_bits", same}});
        if (!options.json)
            print_out("{}: scoring, choosing and evicting take {:.1f} % over no scores; same bits: {}\n",
                      report.lines[v.with].name, 100 * (ratio - 1), same ? "yes" : "NO");
    }
    if (!options.text.empty()) {
        const TokenizerSpeed speed =
            measure_tokenizer(benched.model->tokenizer(), options.text, options.rounds);
        json["tokenizer"] = {{"bytes", speed.n_bytes},
                             {"tokens", speed.n_tokens},
                             {"seconds_per_megabyte", speed.seconds_per_megabyte}};
        if (!options.json)
            print_out("tokenizer: {:.2f} MB to {} tokens; 1 MB takes {:.1f} % of a second\n",
                      1e-6 * static_cast<double>(speed.n_bytes), speed.n_tokens,
                      100 * speed.seconds_per_megabyte);
    }
    for (const Versus& v : rows) {
        const double ratio = report.lines[v.with].ms_per_step / report.lines[v.without].ms_per_step;
        json["rows"].push_back({{"spec", report.lines[v.without].name}, {"time_over_no_rows", ratio}});
        if (!options.json)
            print_out("{}: rows of attention and scores of all heads cost {:.1f} %\n",
                      report.lines[v.without].name, 100 * (ratio - 1));
    }
    if (options.json) print_out("{}\n", json.dump(2));
}

}  // namespace keyhole
