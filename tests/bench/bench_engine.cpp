// Ratios of the CPU engine, each from one interleaved run (A B A B ...): medians over rounds, with the share of busy time that other
// processes took. Numbers are for tests/bench/results, never for a timed test.
#include "engine/base/measure.h"
#include "engine/base/threads.h"
#include "engine/session/session.h"
#include "engine/trace/recorder.h"
#include "tests/reference/tiny_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <string>

namespace keyhole {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
    std::string model;  // a folder; empty: the seeded model of the shape of Pythia-160M
    int context = 2048;
    int rounds = 7;
    int tokens = 6;  // of each contender in a round
    int threads = 2;
    bool cpu_time = false;  // in what scores cost
    int pairs = 9;          // there
    std::string only;       // "scores": that measurement alone
};

double ms_of(const std::function<void()>& body) {
    const auto start = Clock::now();
    body();
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

/// Of the processor, which other processes disturb less; with one thread, since waiting threads spin.
double cpu_ms_of(const std::function<void()>& body) {
    const auto now = [] {
        timespec t{};
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
        return 1e3 * static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_nsec);
    };
    const double start = now();
    body();
    return now() - start;
}

/// A session that decodes when told, its records kept by a recorder as in the window.
class Contender {
  public:
    Contender(const std::shared_ptr<const Model>& model, Backend& backend, int n_prompt,
              const std::vector<std::string>& lanes, bool instrumented) {
        RunSpec spec;
        spec.prompt = reference::random_text(4 * n_prompt, 5);
        while (static_cast<int>(model->tokenizer().encode(spec.prompt).size()) > n_prompt)
            spec.prompt.resize(spec.prompt.size() * 99 / 100);
        for (const std::string& lane : lanes) spec.lanes.push_back(parse_lane_spec(lane));
        spec.follow = spec.ignore_eos = true;
        spec.wants.attention = spec.wants.scores = instrumented;
        session_ = std::make_unique<Session>(model, backend, spec);
        session_->prefill();
        decode(2);
    }
    /// Milliseconds a row.
    double decode(int n_rows) {
        return ms_of([&] {
                   for (int i = 0; i < n_rows; ++i) {
                       const auto step = session_->step();
                       tokens_.push_back(step->lanes[0].token);
                       entropies_.push_back(step->lanes[0].entropy);
                       recorder_.push(step);
                   }
               }) /
               n_rows;
    }
    bool decoded_the_same(const Contender& other) const {
        return tokens_ == other.tokens_ && entropies_ == other.entropies_;
    }

  private:
    std::unique_ptr<Session> session_;
    Recorder recorder_;
    std::vector<int> tokens_;
    std::vector<float> entropies_;  // of the logits: equal when their bits are
};

/// Lanes driven without a session; milliseconds are those of Backend::step alone.
class Steps {
  public:
    /// scores false: the same lanes make no scores at all, and after every row lose what those of `as` lost, untimed.
    Steps(const Model& model, Backend& backend, int n_prompt, const std::vector<std::string>& specs,
          const Steps* as, bool cpu_time)
        : backend_(backend), as_(as), cpu_time_(cpu_time), row_(n_prompt), n_vocab_(model.config().n_vocab) {
        std::vector<int> prompt(static_cast<std::size_t>(n_prompt));
        for (std::size_t i = 0; i < prompt.size(); ++i) prompt[i] = token(static_cast<int>(i));
        for (const std::string& spec : specs) {
            policies_.push_back(resolve(parse_lane_spec(spec).policy, n_prompt, 64));
            if (as_ != nullptr) {
                policies_.back().makes_scores = false;
                policies_.back().stored = ResolvedPolicy::kUnlimited;
            }
            caches_.push_back(backend.make_cache());
        }
        outputs_.resize(specs.size());
        std::vector<LanePrefill> lanes;
        for (std::size_t i = 0; i < specs.size(); ++i)
            lanes.push_back({caches_[i].get(), &policies_[i], {}, &outputs_[i]});
        backend.prefill(prompt, lanes, nullptr, {});
    }
    double decode(int n_rows) {
        double ms = 0;
        for (int i = 0; i < n_rows; ++i, ++row_) {
            std::vector<LaneStep> steps;
            for (std::size_t n = 0; n < caches_.size(); ++n)
                steps.push_back({caches_[n].get(), &policies_[n], token(row_), row_, {}, &outputs_[n]});
            ms += (cpu_time_ ? cpu_ms_of : ms_of)([&] { backend_.step(steps); });
            gone_.emplace_back();
            for (std::size_t n = 0; n < caches_.size(); ++n) {
                gone_.back().push_back(outputs_[n].evictions);
                logits_.push_back(outputs_[n].next_logits);
                if (as_ == nullptr) continue;
                for (const Eviction& e : as_->gone_.at(gone_.size() - 1)[n])
                    caches_[n]->evict(e.kv_head, e.position);
            }
        }
        return ms / n_rows;
    }
    bool decoded_the_same(const Steps& other) const { return logits_ == other.logits_; }

  private:
    int token(int row) const { return (row * 7919 + 13) % n_vocab_; }

    Backend& backend_;
    const Steps* as_;
    bool cpu_time_;
    int row_, n_vocab_;
    std::vector<ResolvedPolicy> policies_;
    std::vector<std::unique_ptr<KvCache>> caches_;
    std::vector<RowOutput> outputs_;
    std::vector<std::vector<std::vector<Eviction>>> gone_;  // [row][lane]
    std::vector<std::vector<float>> logits_;
};

/// Rounds of A and B in turn; prints B's time over A's.
void compare(const Options& options, const std::string& what, const std::function<double()>& a,
             const std::function<double()>& b) {
    std::vector<double> times_a, times_b, ratios;
    const CpuTimes before = CpuTimes::now();
    for (int round = 0; round < options.rounds; ++round) {
        times_a.push_back(a());
        times_b.push_back(b());
        ratios.push_back(times_b.back() / times_a.back());
    }
    const CpuTimes after = CpuTimes::now();
    const auto [least, most] = std::minmax_element(ratios.begin(), ratios.end());
    fmt::print("{:<72} {:>7.3f}  ({:.3f} .. {:.3f})  {:>9.3f} ms {:>9.3f} ms   others {:>3.0f} %\n", what,
               median(times_b) / median(times_a), *least, *most, median(times_a), median(times_b),
               100 * share_of_others(before, after));
    std::fflush(stdout);
}

std::vector<Weight> matrices(const Model& model) {
    std::vector<Weight> all = {model.weights().output};
    for (const LayerWeights& l : model.weights().layers)
        for (const Weight& w : {l.q, l.k, l.v, l.o, l.gate, l.up, l.down}) all.push_back(w);
    return all;
}

std::int64_t bytes_of(const Weight& w) {
    return w.rows * w.cols * static_cast<std::int64_t>(dtype_bytes(w.dtype));
}

/// Milliseconds to read every weight of a step once, by the pool's threads in chunks as a step takes them, and nothing else.
double bare_read(const std::vector<Weight>& weights, ThreadPool& pool) {
    constexpr std::int64_t kChunk = 256 << 10;
    struct Piece {
        const char* data;
        std::int64_t n_words;
    };
    std::vector<Piece> pieces;
    for (const Weight& w : weights)
        for (std::int64_t at = 0; at < bytes_of(w); at += kChunk)
            pieces.push_back({static_cast<const char*>(w.data) + at, std::min(kChunk, bytes_of(w) - at) / 8});
    std::vector<std::uint64_t> sums(pieces.size());
    const double ms = ms_of([&] {
        pool.parallel_for(static_cast<std::int64_t>(pieces.size()), [&](std::int64_t i, int) {
            const Piece& piece = pieces[static_cast<std::size_t>(i)];
            std::uint64_t sum[16] = {};
            for (std::int64_t word = 0; word + 16 <= piece.n_words; word += 16) {
                std::uint64_t block[16];
                std::memcpy(block, piece.data + 8 * word, sizeof block);
                for (int j = 0; j < 16; ++j) sum[j] += block[j];
            }
            sums[static_cast<std::size_t>(i)] =
                std::accumulate(std::begin(sum), std::end(sum), std::uint64_t{0});
        });
    });
    volatile std::uint64_t keep = std::accumulate(sums.begin(), sums.end(), std::uint64_t{0});
    (void)keep;
    return ms;
}

/// What choosing and evicting costs: B makes scores, chooses and evicts in every row; A makes no scores at all and its cache loses
/// the same tokens. B comes first in a round, since A follows it.
void compare_scores(const Options& options, const Model& model, Backend& backend, const std::string& what,
                    std::vector<std::string> specs) {
    for (std::string& spec : specs) spec += fmt::format("budget={}", options.context);
    // Where pages come to lie moves a pair by some percent either way: several pairs, each with caches of its own.
    std::vector<double> ratios;
    bool same = true;
    const CpuTimes before = CpuTimes::now();
    for (int pair = 0; pair < options.pairs; ++pair) {
        Steps with(model, backend, options.context, specs, nullptr, options.cpu_time),
            without(model, backend, options.context, specs, &with, options.cpu_time);
        with.decode(2);
        without.decode(2);
        std::vector<double> of_pair;
        for (int round = 0; round < options.rounds; ++round) {
            const double ms = with.decode(options.tokens);
            of_pair.push_back(ms / without.decode(options.tokens));
        }
        ratios.push_back(median(of_pair));
        same = same && with.decoded_the_same(without);
    }
    const CpuTimes after = CpuTimes::now();
    const auto [least, most] = std::minmax_element(ratios.begin(), ratios.end());
    fmt::print("{:<72} {:>7.3f}  ({:.3f} .. {:.3f})  {} pairs of caches, same bits: {}   others {:>3.0f} %\n",
               what, median(ratios), *least, *most, options.pairs, same ? "yes" : "NO",
               100 * share_of_others(before, after));
    std::fflush(stdout);
}

void run(const Options& options) {
    std::unique_ptr<reference::TinyModel> seeded;
    std::filesystem::path folder = options.model;
    if (options.model.empty()) {
        // Pythia-160M has 12 layers, 12 heads of 64, a plain MLP of 3,072 (here gated, 2,048: as many weights) and 50,304 tokens.
        seeded =
            std::make_unique<reference::TinyModel>(reference::TinyShape{.n_layers = 12,
                                                                        .n_heads = 12,
                                                                        .n_kv_heads = 12,
                                                                        .head_dim = 64,
                                                                        .d_ff = 2048,
                                                                        .n_ctx = 1 << 16,
                                                                        .dtype = reference::StoredAs::f16,
                                                                        .n_vocab = 50304});
        folder = seeded->folder();
    }
    const auto model = load_model(folder);
    std::string notice;
    const auto backend = make_backend(model, {BackendChoice::cpu, options.threads, 0}, &notice);
    const std::vector<Weight> weights = matrices(*model);
    std::int64_t weight_bytes = 0;
    for (const Weight& w : weights) weight_bytes += bytes_of(w);
    fmt::print("{}; {:.1f} M parameters, {:.1f} MB of weights a step; prompt {}; {} rounds of {} rows\n",
               backend->name(), 1e-6 * static_cast<double>(model->n_parameters()),
               1e-6 * static_cast<double>(weight_bytes), options.context, options.rounds, options.tokens);
    fmt::print("{:<72} {:>7}  {:<18}  {:>12} {:>12}\n", "B over A", "median", "(over rounds)", "A", "B");

    if (options.only == "scores" || options.only.empty()) {
        compare_scores(options, *model, *backend, "A no scores, B all accumulators, chooses and evicts",
                       {"keyformer:alpha=0.2,"});
        compare_scores(options, *model, *backend,
                       "A no scores, B six policies side by side, budget = context",
                       {"window:", "sink:", "h2o:", "tova:", "keyformer:", "a2sf:"});
        if (!options.only.empty()) return;
    }
    {
        Contender plain(model, *backend, options.context, {"full"}, false),
            full(model, *backend, options.context, {"full"}, true);
        compare(
            options, "A plain decode, B every row of attention and scores, recorded",
            [&] { return plain.decode(options.tokens); }, [&] { return full.decode(options.tokens); });
        fmt::print("  same tokens and entropies: {}\n", plain.decoded_the_same(full) ? "yes" : "NO");
    }
    {
        const int n_prompt = std::min(options.context, 512);
        Contender one(model, *backend, n_prompt, {"h2o:budget=256"}, false);
        Contender six(model, *backend, n_prompt,
                      {"window:budget=256", "sink:budget=256", "h2o:budget=256", "tova:budget=256",
                       "keyformer:budget=256", "a2sf:budget=256"},
                      false);
        compare(
            options, "A one policy, B six side by side, budget 256",
            [&] { return one.decode(options.tokens); }, [&] { return six.decode(options.tokens); });
    }
    {
        ThreadPool pool(options.threads);
        Contender shallow(model, *backend, 16, {"full"}, false);
        bare_read(weights, pool);
        compare(
            options, "A decode at depth 16, B a bare read of its weights (share reached)",
            [&] { return shallow.decode(options.tokens); }, [&] { return bare_read(weights, pool); });
    }
}

}  // namespace
}  // namespace keyhole

int main(int n_args, char** args) {
    keyhole::Options options;
    for (int i = 1; i + 1 < n_args; i += 2) {
        const std::string key = args[i], value = args[i + 1];
        if (key == "--model")
            options.model = value;
        else if (key == "--context")
            options.context = std::stoi(value);
        else if (key == "--rounds")
            options.rounds = std::stoi(value);
        else if (key == "--tokens")
            options.tokens = std::stoi(value);
        else if (key == "--pairs")
            options.pairs = std::stoi(value);
        else if (key == "--clock")
            options.cpu_time = value == "cpu";
        else if (key == "--only")
            options.only = value;
        else if (key == "--threads")
            options.threads = std::stoi(value);
        else {
            fmt::print(stderr,
                       "{}: options are --model, --context, --rounds, --tokens, --threads, --only scores, "
                       "--clock cpu\n",
                       key);
            return 2;
        }
    }
    try {
        keyhole::run(options);
    } catch (const std::exception& error) {
        fmt::print(stderr, "{}\n", error.what());
        return 1;
    }
}
