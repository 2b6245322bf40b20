#include "engine/device/proof.h"

#include "engine/backend/cpu/cpu_backend.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/model/seeded_model.h"
#include "engine/policy/lane_spec.h"
#include "engine/policy/selection.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <random>
#include <utility>

namespace keyhole {
namespace {

constexpr int kPrompt = 300;                                                    // two splits of attention
constexpr int kChange = 20, kFork = 30, kRewindTo = 34, kRows = 40, kWide = 4;  // rows after the prompt
// The device keeps K and V in 16 bits and computes the prompt in them, the CPU in 32. On the host executor
// logits of the tiny model differ by at most 1.6e-3 of the largest, and attention by 3.1e-3; scores of rows
// differ by 6e-4 of the row's largest.
constexpr double kLogitTolerance = 1.2e-2, kScoreMargin = 4e-3;
constexpr double kPartOfKernels = 0.6;  // of the proof's time

/// A model of f16 with seeded weights; it has two or more query heads a KV head.
std::shared_ptr<const Model> seeded(int n_layers, int n_heads, int n_kv_heads, int head_dim, int d_ff,
                                    int n_vocab) {
    ModelShape shape;
    shape.name = "proof";
    ModelConfig& c = shape.config;
    c.family = "llama";
    c.n_layers = n_layers;
    c.n_heads = n_heads;
    c.n_kv_heads = n_kv_heads;
    c.head_dim = head_dim;
    c.d_model = n_heads * head_dim;
    c.d_ff = d_ff;
    c.n_vocab = n_vocab;
    c.n_ctx = 1024;
    c.rope_theta = 10000.0f;
    c.rotary.dims = c.head_dim;
    for (int i = 0; i < c.head_dim / 2; ++i)
        c.rotary.inverse_frequency.push_back(std::pow(10000.0, -2.0 * i / c.head_dim));
    return make_seeded_model(shape, DType::f16);
}

std::shared_ptr<const Model> tiny_model() {
    return seeded(2, 4, 2, 32, 200, 256);
}
/// 32 million weights.
std::shared_ptr<const Model> timed_model() {
    return seeded(4, 12, 4, 64, 2048, 8192);
}

ResolvedPolicy policy_of(const std::string& spec) {
    return resolve(parse_lane_spec(spec).policy, kPrompt, kRows);
}

/// The worst difference of one measure, and where it was.
struct Worst {
    double value = 0, tolerance = 0;
    std::string where = "everywhere";
    void take(double v, const std::string& at) {
        if (std::isnan(v)) v = std::numeric_limits<double>::infinity();
        if (v <= value) return;
        value = v;
        where = at;
    }
};

/// One lane on the device and, where there is one, on the CPU.
struct Lane {
    std::string name;
    std::unique_ptr<KvCache> device, cpu;
    RowOutput on_device, on_cpu;
};

/// Runs the lanes of the proof: prompt, decode, evictions, a change of budget, a fork, a rewind, 16 lanes.
class Scenario {
  public:
    Scenario(std::shared_ptr<const Model> model, Backend& device, Backend* cpu)
        : model_(std::move(model)), device_(device), cpu_(cpu) {
        std::mt19937 random(11);
        for (int i = 0; i < kPrompt + kRows; ++i) tokens_.push_back(static_cast<int>(random() % 256));
    }

    void run(const std::function<void(double, const std::string&)>& progress) {
        progress(0, "the prompt of the tiny model");
        start();
        std::vector<Lane> kept;
        for (int i = 0; i < kRows; ++i) {
            if (i == kChange) change(1, "h2o:budget=24", i);
            if (i == kFork) fork(2, "keyformer, forked");
            if (i == kRewindTo) kept = copies();
            progress(double(i) / (kRows + kRows - kRewindTo + kWide),
                     "row " + std::to_string(kPrompt + i) + " of the tiny model");
            step(i);
        }
        progress(0.8, "the tiny model after a rewind");
        const std::vector<std::vector<float>> before = last_logits();
        std::swap(lanes_, kept);
        for (int i = kRewindTo; i < kRows; ++i) step(i);
        worst_["rewind"].take(last_logits() == before ? 0 : std::numeric_limits<double>::infinity(),
                              "the rows after it");
        progress(0.9, "16 lanes of the tiny model");
        while (lanes_.size() < 16) fork(lanes_.size() % 5, lanes_[lanes_.size() % 5].name);
        for (int i = kRows; i < kRows + kWide; ++i) step(i);
    }

    /// Every logit of the device, in the order of rows and lanes.
    std::vector<float> bits;
    std::map<std::string, Worst>& worst() { return worst_; }

  private:
    void start() {
        for (const char* spec : {"full", "h2o:budget=40", "keyformer:budget=40", "tova:budget=40",
                                 "h2o:budget=280,positions=cache", "tova:budget=280,positions=compressed"}) {
            const ResolvedPolicy policy = policy_of(spec);
            lanes_.push_back({spec, device_.make_cache(policy), nullptr, {}, {}});
            if (cpu_ != nullptr) lanes_.back().cpu = cpu_->make_cache(policy);
        }
        std::vector<LanePrefill> device, cpu;
        for (Lane& lane : lanes_) {
            device.push_back({lane.device.get(), requested(), &lane.on_device});
            cpu.push_back({lane.cpu.get(), requested(), &lane.on_cpu});
        }
        const std::span<const int> prompt = std::span<const int>(tokens_).first(kPrompt);
        device_.prefill(prompt, device, nullptr, {});
        if (cpu_ != nullptr) cpu_->prefill(prompt, cpu, nullptr, {});
        compare(kPrompt - 1);
    }

    void step(int i) {
        const int row = kPrompt + i;
        std::vector<LaneStep> device, cpu;
        for (Lane& lane : lanes_) {
            const int token = tokens_[to_index(row) % tokens_.size()];
            device.push_back({lane.device.get(), token, row, requested(), &lane.on_device});
            cpu.push_back({lane.cpu.get(), token, row, requested(), &lane.on_cpu});
        }
        device_.step(device);
        if (cpu_ != nullptr) cpu_->step(cpu);
        compare(row);
    }

    void change(std::size_t n, const std::string& spec, int i) {
        Lane& lane = lanes_[n];
        const ResolvedPolicy policy = policy_of(spec);
        const int row = kPrompt + i - 1;
        lane.on_device.evictions = device_.apply_policy(*lane.device, policy, row);
        if (cpu_ == nullptr) return;
        lane.on_cpu.evictions = cpu_->apply_policy(*lane.cpu, policy, row);
        same_tokens(lane, row);
    }

    void fork(std::size_t n, const std::string& name) {
        Lane copy{name, lanes_[n].device->clone(), nullptr, {}, {}};
        if (cpu_ != nullptr) copy.cpu = lanes_[n].cpu->clone();
        lanes_.push_back(std::move(copy));
    }

    std::vector<Lane> copies() const {
        std::vector<Lane> out;
        for (const Lane& lane : lanes_)
            out.push_back(
                {lane.name, lane.device->clone(), lane.cpu != nullptr ? lane.cpu->clone() : nullptr, {}, {}});
        return out;
    }

    std::vector<std::vector<float>> last_logits() const {
        std::vector<std::vector<float>> out;
        for (const Lane& lane : lanes_) out.push_back(lane.on_device.next_logits);
        return out;
    }

    static RowRequest requested() {
        RowRequest all;
        all.scores = all.attention = true;
        return all;
    }

    void compare(int row) {
        for (Lane& lane : lanes_) {
            bits.insert(bits.end(), lane.on_device.next_logits.begin(), lane.on_device.next_logits.end());
            if (cpu_ == nullptr) continue;
            const std::string at = "row " + std::to_string(row);
            Worst& logits = worst_["logits of " + lane.name];
            logits.tolerance = kLogitTolerance;
            logits.take(difference(lane.on_cpu.next_logits, lane.on_device.next_logits), at);
            Worst& rows = worst_["attention of " + lane.name];
            rows.tolerance = kLogitTolerance;
            rows.take(difference(lane.on_cpu.values.attention, lane.on_device.values.attention), at);
            same_tokens(lane, row);
        }
    }

    /// Returns the largest difference as a share of the CPU's largest value.
    static double difference(const std::vector<float>& cpu, const std::vector<float>& device) {
        if (cpu.size() != device.size()) return std::numeric_limits<double>::infinity();
        double largest = 1e-30, worst = 0;
        for (std::size_t i = 0; i < cpu.size(); ++i) {
            if (std::isnan(cpu[i]) != std::isnan(device[i])) return std::numeric_limits<double>::infinity();
            if (std::isnan(cpu[i])) continue;
            largest = std::max(largest, std::abs(double(cpu[i])));
            worst = std::max(worst, std::abs(double(cpu[i]) - double(device[i])));
        }
        return worst / largest;
    }

    /// Both must keep the same tokens, unless their scores are nearly equal. Then both evict the tokens that
    /// one of them evicted, so that the run can go on.
    void same_tokens(Lane& lane, int row) {
        Worst& kept = worst_["kept tokens of " + lane.name];
        kept.tolerance = kScoreMargin;
        for (int g = 0; g < model_->layout().n_kv_heads(); ++g) {
            const std::vector<std::int32_t> cpu = lane.cpu->stored_positions(g),
                                            device = lane.device->stored_positions(g);
            std::vector<std::int32_t> only_cpu, only_device;
            std::set_difference(cpu.begin(), cpu.end(), device.begin(), device.end(),
                                std::back_inserter(only_cpu));
            std::set_difference(device.begin(), device.end(), cpu.begin(), cpu.end(),
                                std::back_inserter(only_device));
            if (only_cpu.empty() && only_device.empty()) continue;
            const double gap = only_cpu.size() == only_device.size()
                                   ? score_gap(lane, g, only_cpu, only_device)
                                   : std::numeric_limits<double>::infinity();
            kept.take(gap, "row " + std::to_string(row) + ", KV head " + std::to_string(g));
            for (const std::int32_t position : only_cpu) lane.cpu->evict(g, position);
            for (const std::int32_t position : only_device) lane.device->evict(g, position);
        }
    }

    /// Returns by how much the CPU's scores of the tokens that only one of them keeps differ, as a share of
    /// the row's largest score.
    static double score_gap(const Lane& lane, int g, const std::vector<std::int32_t>& only_cpu,
                            const std::vector<std::int32_t>& only_device) {
        const RowValues& values = lane.on_cpu.values;
        if (values.scores.empty() || values.positions.empty()) return std::numeric_limits<double>::infinity();
        const auto first = to_index(values.offset[to_index(g)]),
                   last = to_index(values.offset[to_index(g) + 1]);
        double largest = 1e-30, lowest = std::numeric_limits<double>::infinity(), highest = -lowest;
        for (std::size_t i = first; i < last; ++i) {
            const double score = values.scores[i];
            if (std::isfinite(score)) largest = std::max(largest, std::abs(score));
            const auto holds = [&](const std::vector<std::int32_t>& list) {
                return std::find(list.begin(), list.end(), values.positions[i]) != list.end();
            };
            if (!holds(only_cpu) && !holds(only_device)) continue;
            lowest = std::min(lowest, score);
            highest = std::max(highest, score);
        }
        return highest >= lowest ? (highest - lowest) / largest : std::numeric_limits<double>::infinity();
    }

    std::shared_ptr<const Model> model_;
    Backend& device_;
    Backend* cpu_;
    std::vector<int> tokens_;
    std::vector<Lane> lanes_;
    std::map<std::string, Worst> worst_;
};

SelfTestLine line_of(const std::string& what, const std::string& where, double worst, double tolerance) {
    return {what, where, worst, tolerance, worst <= tolerance, ""};
}

constexpr std::int64_t kBlock = std::int64_t{64} << 20;

/// Takes and frees memory, and says how much of it the driver did not report as taken and as free again.
SelfTestLine memory_line(CudaDevice& device) {
    const std::int64_t before = device.memory().free_bytes;
    std::int64_t with = 0;
    {
        const std::shared_ptr<std::byte> block = device.allocate(kBlock);
        with = device.memory().free_bytes;
    }
    const std::int64_t after = device.memory().free_bytes;
    const double taken = double(before - with) / double(kBlock), back = double(after - with) / double(kBlock);
    return line_of("memory", "64 MB taken and freed", std::max(std::abs(taken - 1), std::abs(back - 1)), 0.1);
}

/// Says whether captures that repeated ran as graphs. Without graphs a device is right and slow.
SelfTestLine graphs_line(const LaunchCounts& before, const LaunchCounts& after) {
    const std::int64_t repeated = after.captures - before.captures - (after.new_graphs - before.new_graphs),
                       graphs = after.graphs - before.graphs,
                       failed = after.failed_graphs - before.failed_graphs;
    const char* by_launch = std::getenv("KEYHOLE_CUDA_CHECK");
    const bool makes_none = by_launch != nullptr && *by_launch != '\0' && *by_launch != '0';
    SelfTestLine line{"graphs",
                      "steps of the tiny model",
                      makes_none ? 0 : double(repeated - graphs),
                      0,
                      makes_none || (graphs > 0 && graphs == repeated),
                      ""};
    if (!line.passed)
        line.failure = fmt::format("{} of {} steps ran as a graph; the device failed to make {}", graphs,
                                   repeated, failed);
    return line;
}

void run_model(CudaDevice& device, const ProofProgress& progress, std::vector<SelfTestLine>& lines) {
    const std::shared_ptr<const Model> model = tiny_model();
    const auto say = [&](double from, double to) {
        return [&progress, from, to](double share, const std::string& what) {
            if (progress) progress(from + share * (to - from), what);
        };
    };
    {
        const auto backend = device.make_backend(model, {}), cpu = make_cpu_backend(model, 1);
        Scenario run(model, *backend, cpu.get());
        run.run(say(kPartOfKernels, 0.8));
        for (const auto& [what, worst] : run.worst())
            lines.push_back(line_of(what, worst.where, worst.value, worst.tolerance));
    }
    std::vector<float> bits[2];
    LaunchCounts counts[2];                   // of the run in graphs: before and after
    for (const bool timed : {true, false}) {  // a timed backend launches kernel by kernel, not in graphs
        const auto backend = device.make_backend(model, {});
        StepTimes times;
        if (timed) backend->time_parts(&times);
        counts[0] = device.counts();
        Scenario run(model, *backend, nullptr);
        run.run(say(timed ? 0.8 : 0.87, timed ? 0.87 : 0.94));
        counts[1] = device.counts();
        if (timed) backend->time_parts(nullptr);
        bits[timed ? 1 : 0] = std::move(run.bits);
    }
    std::size_t n_other = bits[0].size() == bits[1].size() ? 0 : bits[0].size();
    for (std::size_t i = 0; i < std::min(bits[0].size(), bits[1].size()); ++i)
        n_other += std::memcmp(&bits[0][i], &bits[1][i], sizeof(float)) != 0;
    lines.push_back(line_of("other bits the second time", "as graphs and kernel by kernel",
                            double(n_other) / double(bits[0].size()), 0));
    lines.push_back(graphs_line(counts[0], counts[1]));
    if (progress) progress(0.95, "memory of the device");
    lines.push_back(memory_line(device));
    // Other programs take and free memory too, so that only a loss in every one of three runs counts.
    double least_lost = std::numeric_limits<double>::infinity();
    for (int i = 0; i < 3 && least_lost > 0; ++i) {
        const std::int64_t before = device.memory().free_bytes;
        {
            const auto backend = device.make_backend(model, {});
            const auto cache = backend->make_cache(policy_of("full"));
            RowOutput out;
            const LanePrefill lane{cache.get(), {}, &out};
            backend->prefill(std::vector<int>(kPrompt, 7), {&lane, 1}, nullptr, {});
        }
        least_lost = std::min(least_lost, double(before - device.memory().free_bytes) / 1e6);
    }
    lines.push_back(line_of("MB lost in every run", "a model and a cache", std::max(0.0, least_lost), 0));
}

}  // namespace

std::vector<SelfTestLine> run_proof(CudaDevice& device, const ProofProgress& progress) {
    std::string last;
    const ProofProgress say = [&](double share, const std::string& what) {
        last = what;
        if (progress) progress(share, what);
    };
    std::vector<SelfTestLine> lines = device.check_kernels(
        [&](double share, const std::string& what) { say(kPartOfKernels * share, what); });
    // A failed kernel explains whatever the model would show.
    if (std::any_of(lines.begin(), lines.end(), [](const SelfTestLine& line) { return !line.passed; }))
        return lines;
    try {
        run_model(device, say, lines);
    } catch (const Error& error) {
        lines.push_back(
            {last, "tiny model", std::numeric_limits<double>::infinity(), 0, false, error.what()});
    }
    return lines;
}

TimedStep time_step(CudaDevice& device, const ProofProgress& progress) {
    using Clock = std::chrono::steady_clock;
    const std::shared_ptr<const Model> model = timed_model();
    struct Runner {
        std::unique_ptr<Backend> backend;
        std::unique_ptr<KvCache> cache;
        RowOutput out;
        double best_ms = std::numeric_limits<double>::infinity();
    };
    Runner runners[2];
    runners[0].backend = device.make_backend(model, {});
    runners[1].backend = make_cpu_backend(model, 0);
    const std::vector<int> prompt(8, 7);
    for (Runner& runner : runners) {
        runner.cache = runner.backend->make_cache(policy_of("full"));
        const LanePrefill lane{runner.cache.get(), {}, &runner.out};
        runner.backend->prefill(prompt, {&lane, 1}, nullptr, {});
    }
    // The best of several, since other programs only slow a step down. The first two make the graph.
    constexpr int kFirst = 2, kTimed = 6;
    for (int i = 0; i < kFirst + kTimed; ++i) {
        if (progress)
            progress(0.96 + 0.04 * i / (kFirst + kTimed),
                     fmt::format("step {} of {} on the device and on the CPU", i + 1, kFirst + kTimed));
        for (Runner& runner : runners) {
            const int row = static_cast<int>(prompt.size()) + i;
            const LaneStep step{runner.cache.get(), 60 + i, row, {}, &runner.out};
            const auto begin = Clock::now();
            runner.backend->step({&step, 1});
            const double ms = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
            if (i >= kFirst) runner.best_ms = std::min(runner.best_ms, ms);
        }
    }
    return {runners[0].best_ms, runners[1].best_ms};
}

std::string proof_failure(const std::vector<SelfTestLine>& lines) {
    std::string text;
    std::size_t n_others = 0;
    for (const SelfTestLine& line : lines) {
        if (line.passed) continue;
        if (!text.empty())
            ++n_others;
        else if (!line.failure.empty())
            text = fmt::format("{} ({}): {}", line.kernel, line.shape, line.failure);
        else
            text = fmt::format("{} ({}) is off by {:.1e}, {:.0e} is allowed", line.kernel, line.shape,
                               line.worst, line.tolerance);
    }
    if (n_others > 0) text += fmt::format(", and {} other line{} failed", n_others, n_others == 1 ? "" : "s");
    return text;
}

}  // namespace keyhole
