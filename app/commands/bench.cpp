#include "app/commands/commands.h"
#include "app/commands/options.h"
#include "engine/base/error.h"
#include "engine/base/measure.h"
#include "engine/base/philox.h"
#include "engine/base/threads.h"

#include <nlohmann/json.hpp>

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

namespace keyhole {

namespace {

using Clock = std::chrono::steady_clock;

struct BenchOptions {
    RunOptions run;
    int context = 512;
    int batch = 1;
    int rounds = 5;
    bool instrument = false;
    bool scores = false;
    bool json = false;
};

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

std::int64_t weight_bytes(const Model& model) {
    auto bytes = [](const Weight& w) {
        return w.rows * w.cols * static_cast<std::int64_t>(dtype_bytes(w.dtype));
    };
    const ModelWeights& weights = model.weights();
    std::int64_t total = bytes(weights.output) + bytes(weights.final_norm);
    for (const LayerWeights& l : weights.layers)
        for (const Weight* w :
             {&l.attention_norm, &l.q, &l.k, &l.v, &l.o, &l.mlp_norm, &l.gate, &l.up, &l.down})
            total += bytes(*w);
    return total;
}

/// Seconds that the pool needs to read so much memory, in chunks as a step takes them, and nothing else: what a step cannot beat.
double bare_read_seconds(std::span<const std::uint64_t> data, ThreadPool& pool) {
    constexpr std::size_t kWords = 32 << 10;
    const std::size_t n_chunks = (data.size() + kWords - 1) / kWords;
    std::vector<std::uint64_t> sums(n_chunks);
    const auto start = Clock::now();
    pool.parallel_for(static_cast<std::int64_t>(n_chunks), [&](std::int64_t chunk, int) {
        const std::size_t first = static_cast<std::size_t>(chunk) * kWords;
        const std::span<const std::uint64_t> words =
            data.subspan(first, std::min(kWords, data.size() - first));
        std::uint64_t sum[16] = {};
        for (std::size_t i = 0; i + 16 <= words.size(); i += 16)
            for (std::size_t j = 0; j < 16; ++j) sum[j] += words[i + j];
        sums[static_cast<std::size_t>(chunk)] =
            std::accumulate(std::begin(sum), std::end(sum), std::uint64_t{0});
    });
    const double seconds = seconds_since(start);
    volatile std::uint64_t keep = std::accumulate(sums.begin(), sums.end(), std::uint64_t{0});
    (void)keep;
    return seconds;
}

/// B lanes of one policy, ready to decode.
struct Contender {
    std::string name;
    ResolvedPolicy policy;
    RowWants wants;
    std::vector<std::unique_ptr<KvCache>> caches;
    std::vector<RowOutput> outputs;
    std::vector<double> token_ms;
    int row = 0;
    // With --scores: what left in every [row][lane], and a digest of the logits of every row and lane.
    std::vector<std::vector<std::vector<Eviction>>> gone;
    std::vector<std::uint64_t> digests;

    /// original: makes no scores; loses what that one lost, untimed.
    void decode(Backend& backend, int n_tokens, const Model& model, bool keep, const Contender* original) {
        std::vector<LaneStep> steps(caches.size());
        for (int i = 0; i < n_tokens; ++i, ++row) {
            for (std::size_t b = 0; b < caches.size(); ++b)
                steps[b] = {caches[b].get(),
                            &policy,
                            (row * 31 + static_cast<int>(b)) % model.config().n_vocab,
                            row,
                            wants,
                            &outputs[b]};
            const auto start = Clock::now();
            backend.step(steps);
            token_ms.push_back(1e3 * seconds_since(start));
            if (!keep) continue;
            gone.emplace_back();
            for (std::size_t b = 0; b < caches.size(); ++b) {
                gone.back().push_back(outputs[b].evictions);
                digests.push_back(digest(outputs[b].next_logits));
                if (original == nullptr) continue;
                for (const Eviction& e : original->gone.at(gone.size() - 1)[b])
                    caches[b]->evict(e.kv_head, e.position);
            }
        }
    }
    /// FNV-1a over the bits.
    static std::uint64_t digest(const std::vector<float>& values) {
        std::uint64_t hash = 14695981039346656037ull;
        for (float value : values) hash = (hash ^ std::bit_cast<std::uint32_t>(value)) * 1099511628211ull;
        return hash;
    }
    std::int64_t cache_bytes() const {
        std::int64_t bytes = 0;
        for (const auto& cache : caches) bytes += cache->use().stored_bytes;
        return bytes;
    }
};

void run_bench(const BenchOptions& options) {
    LoadedModel loaded = load_for_run(options.run);
    const Model& model = *loaded.model;
    std::vector<int> prompt(static_cast<std::size_t>(options.context));
    for (std::size_t i = 0; i < prompt.size(); ++i)  // any text reads the same bytes
        prompt[i] = static_cast<int>(philox4x32_10({{static_cast<std::uint32_t>(i), 0, 0, 0}}, 1).x[0] %
                                     static_cast<std::uint32_t>(model.config().n_vocab));

    std::vector<Contender> contenders;
    std::vector<std::string> specs =
        options.run.lanes.empty() ? std::vector<std::string>{"full"} : options.run.lanes;
    for (const std::string& text : specs) {
        enum class Variant { plain, without_scores, instrumented };
        for (const Variant variant : {Variant::plain, Variant::without_scores, Variant::instrumented}) {
            const bool instrumented = variant == Variant::instrumented,
                       without_scores = variant == Variant::without_scores;
            if ((instrumented && !options.instrument) || (without_scores && !options.scores)) continue;
            Contender& c = contenders.emplace_back();
            c.name = text + (instrumented ? " +rows" : without_scores ? " -scores" : "");
            c.policy = resolve(parse_lane_spec(text).policy, options.context, options.run.n_tokens);
            if (without_scores) {
                if (c.policy.exceeded(options.context, options.context - 1))
                    fail(
                        ErrorCode::wrong_use,
                        "--scores: lane '{}' evicts after the prompt of {} tokens; give it budget={} or more",
                        text, options.context, options.context);
                c.policy.makes_scores = false;
                c.policy.stored = ResolvedPolicy::kUnlimited;
            }
            c.wants.attention = c.wants.scores = instrumented;
            c.outputs.resize(static_cast<std::size_t>(options.batch));
            std::vector<LanePrefill> lanes;
            for (int b = 0; b < options.batch; ++b) {
                c.caches.push_back(loaded.backend->make_cache());
                lanes.push_back(
                    {c.caches.back().get(), &c.policy, {}, &c.outputs[static_cast<std::size_t>(b)]});
            }
            loaded.backend->prefill(prompt, lanes, nullptr, {});
            c.row = options.context;
        }
    }
    const std::int64_t read_bytes = weight_bytes(model);
    std::vector<std::uint64_t> bare(static_cast<std::size_t>(std::max<std::int64_t>(read_bytes, 1 << 20)) / 8,
                                    1);
    ThreadPool pool(options.run.n_threads);

    // Interleaved rounds: what slows the machine down slows all contenders.
    std::vector<double> bare_ms;
    const int per_round = std::max(1, options.run.n_tokens / options.rounds);
    const CpuTimes cpu_before = CpuTimes::now();
    Progress progress("bench", options.rounds * static_cast<double>(contenders.size()));
    double done = 0;
    const auto decode = [&](std::size_t i, int n_tokens) {
        const bool follows = !contenders[i].policy.makes_scores;
        contenders[i].decode(*loaded.backend, n_tokens, model, options.scores,
                             follows ? &contenders[i - 1] : nullptr);
    };
    for (std::size_t i = 0; i < contenders.size(); ++i) decode(i, 2), contenders[i].token_ms.clear();
    for (int round = 0; round < options.rounds; ++round) {
        for (std::size_t i = 0; i < contenders.size(); ++i) {
            decode(i, per_round);
            progress.update(++done);
        }
        for (int i = 0; i < 3; ++i) bare_ms.push_back(1e3 * bare_read_seconds(bare, pool));
    }
    const CpuTimes cpu_after = CpuTimes::now();
    const double others = share_of_others(cpu_before, cpu_after);

    const double read_ms = median(bare_ms);
    nlohmann::json json;
    json["model"] = model.path().string();
    json["backend"] = loaded.backend->name();
    json["context"] = options.context;
    json["batch"] = options.batch;
    json["weight_bytes"] = read_bytes;
    json["bare_read_ms"] = read_ms;
    json["cpu_share_of_others"] = others;
    if (!options.json) {
        fmt::print(
            "{}, {}\ncontext {}, batch {}, {} tokens in {} rounds; other processes took {:.0f} % of the busy "
            "time\n",
            model.path().string(), loaded.backend_text, options.context, options.batch,
            per_round * options.rounds, options.rounds, 100 * others);
        fmt::print("bare read of the {:.2f} MB of weights: {:.3f} ms ({:.1f} GB/s)\n\n",
                   1e-6 * static_cast<double>(read_bytes), read_ms,
                   1e-6 * static_cast<double>(read_bytes) / read_ms);
        fmt::print("{:<44} {:>9} {:>10} {:>9} {:>11} {:>8} {:>9}\n", "lane", "ms/step", "tokens/s", "p99/p50",
                   "KV MB", "GB/s", "% of read");
    }
    const double first_ms = median(contenders.front().token_ms);
    for (const Contender& c : contenders) {
        const double ms = median(c.token_ms);
        std::vector<double> sorted = c.token_ms;
        std::sort(sorted.begin(), sorted.end());
        const double p99 = sorted[std::min(sorted.size() - 1, sorted.size() * 99 / 100)];
        const double bytes = static_cast<double>(read_bytes + c.cache_bytes());
        const double share = bytes / static_cast<double>(read_bytes) * read_ms / ms;
        json["lanes"].push_back({{"spec", c.name},
                                 {"ms_per_step", ms},
                                 {"tokens_per_s", 1e3 * options.batch / ms},
                                 {"p99_over_p50", p99 / ms},
                                 {"bytes_per_step", bytes},
                                 {"gb_per_s", 1e-6 * bytes / ms},
                                 {"share_of_bare_read", share},
                                 {"time_over_first", ms / first_ms}});
        if (!options.json)
            fmt::print(
                "{:<44} {:>9.3f} {:>10.1f} {:>9.2f} {:>11.2f} {:>8.2f} {:>8.0f}%   {:.2f}x the first\n",
                c.name, ms, 1e3 * options.batch / ms, p99 / ms, 1e-6 * static_cast<double>(c.cache_bytes()),
                1e-6 * bytes / ms, 100 * share, ms / first_ms);
    }
    for (std::size_t i = 1; i < contenders.size(); ++i) {
        if (contenders[i].policy.makes_scores) continue;
        const Contender &with = contenders[i - 1], &without = contenders[i];
        const double ratio = median(with.token_ms) / median(without.token_ms);
        const bool same = with.digests == without.digests;
        json["scores"].push_back({{"spec", with.name}, {"time_over_no_scores", ratio}, {"same_bits", same}});
        if (!options.json)
            fmt::print("{}: scoring, choosing and evicting take {:.1f} % over no scores; same bits: {}\n",
                       with.name, 100 * (ratio - 1), same ? "yes" : "NO");
    }
    if (options.json) fmt::print("{}\n", json.dump(2));
}

}  // namespace

void add_bench_command(CLI::App& app) {
    auto options = std::make_shared<BenchOptions>();
    CLI::App* command = app.add_subcommand(
        "bench", "tokens per second, bytes per token and the share of a bare read, in interleaved rounds");
    options->run.add_model(*command);
    options->run.add_backend(*command);
    options->run.add_lanes(*command);
    command->add_option("--context", options->context, "prompt tokens")
        ->check(CLI::Range(1, 1 << 20))
        ->capture_default_str();
    command->add_option("--tokens", options->run.n_tokens, "tokens to decode, over all rounds")
        ->check(CLI::Range(1, 1 << 20))
        ->capture_default_str();
    command->add_option("--batch", options->batch, "lanes of each policy")
        ->check(CLI::Range(1, 4096))
        ->capture_default_str();
    command->add_option("--rounds", options->rounds, "interleaved rounds")
        ->check(CLI::Range(1, 1000))
        ->capture_default_str();
    command->add_flag("--instrument", options->instrument,
                      "each lane also with attention and score rows of all heads");
    command->add_flag(
        "--scores", options->scores,
        "each lane also without any scores, losing the same tokens: what choosing and evicting costs");
    command->add_flag("--json", options->json, "machine-readable");
    command->callback([options] { run_bench(*options); });
}

}  // namespace keyhole
