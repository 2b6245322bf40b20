#include "engine/bench/bench.h"

#include "engine/base/resource_use.h"

#include <algorithm>

namespace keyhole {

std::int64_t read_weight_bytes(const Model& model) {
    // A step reads one row of an embedding per lane. A tied embedding is also the output and is read whole.
    const ModelWeights& weights = model.weights();
    std::int64_t total = 0;
    visit_weights(weights, [&](const Weight& w) {
        const bool looked_up = w.data == weights.position_embedding.data ||
                               (w.data == weights.embedding.data && w.data != weights.output.data);
        if (!looked_up) total += stored_bytes(w);
    });
    // Of a layer's experts, which are equal, a token reads its own.
    const std::int64_t n_unread = model.config().n_experts - model.config().n_experts_used;
    for (const LayerWeights& layer : weights.layers)
        if (!layer.experts.empty())
            for (const Weight* w : {&layer.experts[0].gate, &layer.experts[0].up, &layer.experts[0].down})
                total -= n_unread * stored_bytes(*w);
    return total;
}

namespace {

BenchLine line_of(const Contender& contender, std::int64_t weight_bytes, double bandwidth) {
    BenchLine line;
    line.bandwidth = bandwidth;
    line.name = contender.setup().name;
    line.n_lanes = contender.n_lanes();
    line.context = contender.setup().context;
    line.ms_per_step = median(contender.step_ms);
    std::vector<double> sorted = contender.step_ms;
    std::sort(sorted.begin(), sorted.end());
    line.p99_over_p50 = sorted[std::min(sorted.size() - 1, sorted.size() * 99 / 100)] / line.ms_per_step;
    line.tokens_per_s = 1e3 * line.n_lanes / line.ms_per_step;
    line.kv_bytes = contender.read_bytes();
    line.allocated_bytes = static_cast<double>(contender.allocated_bytes());
    line.bytes_per_step = weight_bytes + line.kv_bytes;
    line.gb_per_s = 1e-6 * static_cast<double>(line.bytes_per_step) / line.ms_per_step;
    line.share_of_bandwidth = line.gb_per_s / bandwidth;
    return line;
}

}  // namespace

BenchReport run_bench(const Model& model, Backend& backend, std::span<Contender* const> contenders,
                      Bandwidth& bandwidth, const BenchOptions& options) {
    const int per_round = std::max(1, options.n_steps / options.n_rounds);
    for (Contender* c : contenders) c->decode(2), c->restart();
    const std::int64_t weight_bytes = read_weight_bytes(model);
    // What the machine can do: other processes make a measurement smaller, and nothing makes one larger.
    std::vector<double> best(contenders.size());
    double done = 0;
    const CpuTimes before = CpuTimes::now();
    for (int round = 0; round < options.n_rounds;
         ++round) {  // so that a slow phase of the machine affects all
        for (std::size_t i = 0; i < contenders.size(); ++i) {
            contenders[i]->decode(per_round);
            best[i] = std::max(best[i], bandwidth.measure(weight_bytes + contenders[i]->read_bytes()));
            done += 1.0 / static_cast<double>(contenders.size());
            if (options.progress) options.progress(done / options.n_rounds);
        }
    }
    const CpuTimes after = CpuTimes::now();

    BenchReport report;
    report.weight_bytes = weight_bytes;
    report.share_of_others = share_of_others(before, after);
    for (std::size_t i = 0; i < contenders.size(); ++i)
        report.lines.push_back(line_of(*contenders[i], weight_bytes, best[i]));
    report.launches = backend.launch_counts();
    for (std::size_t i = 0; options.parts && i < contenders.size(); ++i) {
        BenchLine& line = report.lines[i];
        line.has_parts = backend.time_parts(&line.parts);
        if (line.has_parts) contenders[i]->decode(std::min(16, per_round * options.n_rounds));
        backend.time_parts(nullptr);
    }
    return report;
}

std::vector<PartRead> part_reads(const BenchLine& line) {
    std::vector<PartRead> reads;
    const auto add = [&](const char* part, std::int64_t n_bytes, double seconds) {
        if (seconds <= 0) return;
        const double speed =
            1e-9 * static_cast<double>(n_bytes) * static_cast<double>(line.parts.n_steps) / seconds;
        reads.push_back({part, n_bytes, speed, speed / line.bandwidth});
    };
    add("linear", line.bytes_per_step - line.kv_bytes, line.parts.linear);
    add("attention", line.kv_bytes, line.parts.attention);
    return reads;
}

SpeedUp speed_up(const BenchLine& line, const BenchLine& base) {
    const auto per_token = [](const BenchLine& l) {
        return static_cast<double>(l.bytes_per_step) / l.n_lanes;
    };
    return {line.tokens_per_s / base.tokens_per_s, per_token(base) / per_token(line)};
}

}  // namespace keyhole
