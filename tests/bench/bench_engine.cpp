// Measures ratios of CPU-engine times. Each ratio comes from one interleaved run (A B A B ...): medians over
// rounds, with the share of busy time that other processes took. The numbers belong in tests/bench/results.
// No timed test uses them.
#include "engine/base/resource_use.h"
#include "engine/bench/bench.h"
#include "engine/device/make_backend.h"
#include "engine/model/seeded_model.h"
#include "engine/session/session.h"
#include "engine/trace/recorder.h"
#include "tests/bench/bench_options.h"
#include "tests/reference/instruction_set.h"
#include "tests/reference/tiny_model.h"

#include <fmt/format.h>

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <ctime>
#include <functional>
#include <memory>
#include <numeric>
#include <string>

namespace keyhole {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
    std::string model;  // a model folder; empty: the seeded model with Pythia-160M's shape
    int context = 2048;
    int rounds = 7;
    int tokens = 6;  // per contender and round
    int threads = 2;
    bool cpu_time = false;  // compare_scores measures processor time instead of wall time
    int pairs = 9;          // repetitions in compare_scores
    std::string only;       // one of "scores", "rows", "lanes", "busy", "read", "types",
                            // "pages": run it alone
};

double ms_of(const std::function<void()>& body) {
    const auto start = Clock::now();
    body();
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

/// Returns the processor time of this process, which other processes disturb less than wall time. Use it with
/// one thread: waiting threads spin and would count.
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

/// A session that decodes on request. A recorder keeps its records, as in the window.
class SessionRun {
  public:
    SessionRun(const std::shared_ptr<const Model>& model, Backend& backend, int n_prompt,
               const std::vector<std::string>& lanes, bool instrumented) {
        RunSpec spec;
        spec.prompt = reference::random_text(4 * n_prompt, 5);
        while (static_cast<int>(model->tokenizer().encode(spec.prompt).size()) > n_prompt)
            spec.prompt.resize(spec.prompt.size() * 99 / 100);
        for (const std::string& lane : lanes) spec.lanes.push_back(parse_lane_spec(lane));
        spec.follow = spec.ignore_eos = true;
        spec.requested.attention = spec.requested.scores = instrumented;
        session_ = std::make_unique<Session>(model, backend, spec);
        session_->prefill();
        decode(2);
    }
    /// Decodes n_rows rows and returns milliseconds per row.
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
    bool decoded_the_same(const SessionRun& other) const {
        return tokens_ == other.tokens_ && entropies_ == other.entropies_;
    }

  private:
    std::unique_ptr<Session> session_;
    Recorder recorder_;
    std::vector<int> tokens_;
    std::vector<float> entropies_;  // of the next-token logits; stand for them in the comparison
};

/// Lanes of several policies, one lane per policy, driven without a session.
Contender lanes_of(const Model& model, Backend& backend, const Options& options,
                   const std::vector<std::string>& specs, const Contender* follows) {
    ContenderSetup setup;
    for (const std::string& spec : specs)
        setup.policies.push_back(
            resolve(parse_lane_spec(spec).policy, options.context, 64, head_grid(model.layout())));
    setup.context = options.context;
    setup.follows = follows;
    setup.keeps = true;
    Contender lanes(model, backend, std::move(setup));
    if (options.cpu_time) lanes.clock = cpu_ms_of;
    return lanes;
}

/// Decodes n_rows rows and returns milliseconds per row.
double decode(Contender& lanes, int n_rows) {
    lanes.restart();
    lanes.decode(n_rows);
    return std::accumulate(lanes.step_ms.begin(), lanes.step_ms.end(), 0.0) / n_rows;
}

/// A process that takes all it can get of one core between go() and stop().
class BusyProcess {
  public:
    BusyProcess() : pid_(fork()) {
        if (pid_ == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);  // ends with the bench if the bench is killed
        if (pid_ == 0)
            for (volatile std::uint64_t n = 0;;) n = n + 1;
        stop();
    }
    ~BusyProcess() {
        kill(pid_, SIGKILL);
        waitpid(pid_, nullptr, 0);
    }
    BusyProcess(const BusyProcess&) = delete;
    BusyProcess& operator=(const BusyProcess&) = delete;
    void go() const { kill(pid_, SIGCONT); }
    void stop() const { kill(pid_, SIGSTOP); }

  private:
    pid_t pid_;
};

/// Runs rounds of A and B in turn and prints B's time over A's.
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

/// Measures the cost of scoring, selection and eviction. B scores, selects and evicts in every row. A
/// computes no scores; its cache evicts the same tokens as B's. B runs first in a round, since A follows it.
void compare_scores(const Options& options, const Model& model, Backend& backend, const std::string& what,
                    std::vector<std::string> specs) {
    for (std::string& spec : specs) spec += fmt::format("budget={}", options.context);
    // Page placement shifts one pair by a few percent either way, so several pairs run, each with its own
    // caches.
    std::vector<double> ratios;
    bool same = true;
    const CpuTimes before = CpuTimes::now();
    for (int pair = 0; pair < options.pairs; ++pair) {
        Contender with = lanes_of(model, backend, options, specs, nullptr),
                  without = lanes_of(model, backend, options, specs, &with);
        decode(with, 2);
        decode(without, 2);
        std::vector<double> of_pair;
        for (int round = 0; round < options.rounds; ++round) {
            const double ms = decode(with, options.tokens);
            of_pair.push_back(ms / decode(without, options.tokens));
        }
        ratios.push_back(median(of_pair));
        same = same && with.digests() == without.digests();
    }
    const CpuTimes after = CpuTimes::now();
    const auto [least, most] = std::minmax_element(ratios.begin(), ratios.end());
    fmt::print("{:<72} {:>7.3f}  ({:.3f} .. {:.3f})  {} pairs of caches, same bits: {}   others {:>3.0f} %\n",
               what, median(ratios), *least, *most, options.pairs, same ? "yes" : "NO",
               100 * share_of_others(before, after));
    std::fflush(stdout);
}

void run(const Options& options) {
    const auto model = options.model.empty() ? make_seeded_model(shape_of("pythia-160m"), DType::f16)
                                             : load_model(options.model);
    std::string notice;
    const auto backend = make_backend(model, {BackendChoice::cpu, options.threads, 0}, &notice);
    const std::int64_t weight_bytes = read_weight_bytes(*model);
    fmt::print("{}; {:.1f} M parameters, {:.1f} MB of weights a step; prompt {}; {} rounds of {} rows\n",
               backend->name(), 1e-6 * static_cast<double>(model->n_parameters()),
               1e-6 * static_cast<double>(weight_bytes), options.context, options.rounds, options.tokens);
    fmt::print("{:<72} {:>7}  {:<18}  {:>12} {:>12}\n", "B over A", "median", "(over rounds)", "A", "B");

    const auto wanted = [&](std::string_view what) { return options.only.empty() || options.only == what; };
    if (wanted("scores")) {
        compare_scores(options, *model, *backend, "A no scores, B all accumulators, chooses and evicts",
                       {"keyformer:alpha=0.2,"});
        compare_scores(options, *model, *backend,
                       "A no scores, B six policies side by side, budget = context",
                       {"window:", "sink:", "h2o:", "tova:", "keyformer:", "a2sf:"});
    }
    if (wanted("rows")) {
        SessionRun plain(model, *backend, options.context, {"full"}, false),
            full(model, *backend, options.context, {"full"}, true);
        compare(
            options, "A plain decode, B every row of attention and scores, recorded",
            [&] { return plain.decode(options.tokens); }, [&] { return full.decode(options.tokens); });
        fmt::print("  same tokens and entropies: {}\n", plain.decoded_the_same(full) ? "yes" : "NO");
    }
    if (wanted("types")) {
        const auto with = [&](const char* type) {
            return lanes_of(*model, *backend, options, {fmt::format("full:kv_dtype={}", type)}, nullptr);
        };
        Contender exact = with("f32"), half = with("f16"), brain = with("bf16"), blocks = with("q8");
        for (const auto& [name, lane] :
             {std::pair{"f16", &half}, std::pair{"bf16", &brain}, std::pair{"q8", &blocks}})
            compare(
                options,
                fmt::format("A K and V as f32 ({:.1f} MB), B as {} ({:.1f} MB)",
                            1e-6 * static_cast<double>(exact.stored_bytes()), name,
                            1e-6 * static_cast<double>(lane->stored_bytes())),
                [&] { return decode(exact, options.tokens); }, [&] { return decode(*lane, options.tokens); });
    }
    if (wanted("pages")) {  // with --context 8192, as issues and papers ask
        Contender full = lanes_of(*model, *backend, options, {"full"}, nullptr);
        for (const char* spec : {"quest", "quest:read=1024,page=32", "quest:read=256"}) {
            Contender quest = lanes_of(*model, *backend, options, {spec}, nullptr);
            compare(
                options, fmt::format("A full, B {}", spec), [&] { return decode(full, options.tokens); },
                [&] { return decode(quest, options.tokens); });
        }
    }
    if (wanted("lanes")) {
        const int n_prompt = std::min(options.context, 512);
        SessionRun one(model, *backend, n_prompt, {"h2o:budget=256"}, false);
        SessionRun six(model, *backend, n_prompt,
                       {"window:budget=256", "sink:budget=256", "h2o:budget=256", "tova:budget=256",
                        "keyformer:budget=256", "a2sf:budget=256"},
                       false);
        compare(
            options, "A one policy, B six side by side, budget 256",
            [&] { return one.decode(options.tokens); }, [&] { return six.decode(options.tokens); });
    }
    if (wanted("busy")) {
        SessionRun lane(model, *backend, std::min(options.context, 512), {"h2o:budget=256"}, false);
        const BusyProcess other;
        compare(
            options, "A decode beside a busy process, B alone (share of the speed kept)",
            [&] {
                other.go();
                const double ms = lane.decode(options.tokens);
                other.stop();
                return ms;
            },
            [&] { return lane.decode(options.tokens); });
    }
    if (wanted("read")) {
        const auto bandwidth = host_read(options.threads);
        const auto read_ms = [&] {
            return 1e-6 * static_cast<double>(weight_bytes) / bandwidth->measure(weight_bytes);
        };
        SessionRun shallow(model, *backend, 16, {"full"}, false);
        read_ms();
        compare(
            options, "A decode at depth 16, B a bare read of its weights (share reached)",
            [&] { return shallow.decode(options.tokens); }, read_ms);
    }
}

}  // namespace
}  // namespace keyhole

int main(int n_args, char** args) {
    keyhole::Options options;
    std::string clock;  // "cpu": measure processor time
    std::string simd;   // an instruction set, such as AVX2; empty: the processor's best
    if (!keyhole::read_options(n_args, args,
                               {{"--model", &options.model},
                                {"--context", &options.context},
                                {"--rounds", &options.rounds},
                                {"--tokens", &options.tokens},
                                {"--pairs", &options.pairs},
                                {"--clock", &clock},
                                {"--only", &options.only},
                                {"--simd", &simd},
                                {"--threads", &options.threads}}))
        return 2;
    options.cpu_time = clock == "cpu";
    if (!simd.empty() && !reference::use_instruction_set(simd)) {
        fmt::print(stderr, "--simd {}: this processor or build has none of that name\n", simd);
        return 2;
    }
    try {
        keyhole::run(options);
    } catch (const std::exception& error) {
        fmt::print(stderr, "{}\n", error.what());
        return 1;
    }
}
