// Fuzzes lane specs. Text to parameters to text is a round trip, and resolved totals can be summed on any
// model.
#include "engine/policy/lane_spec.h"

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/piece_mutator.h"

#include <cmath>

namespace keyhole::fuzz_lane_spec {

namespace {

[[noreturn]] void stop(const char* what, const std::string& a, const std::string& b = {}) {
    std::fprintf(stderr, "%s: %s | %s\n", what, a.c_str(), b.c_str());
    std::abort();
}

/// Layouts: one KV head per query head, one for several query heads, and layers that borrow another layer's
/// heads.
std::vector<HeadGrid> grids() {
    return {{1, 1, {0}},
            {2, 4, {0, 0, 1, 1, 2, 2, 3, 3}},
            {3, 2, {0, 1, 0, 1, 2, 3}},
            {4, 3, {0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1}}};
}

void check_resolved(const ResolvedPolicy& p, const std::string& text) {
    constexpr int kMost = 1'000'000'000;
    const bool ends = p.stored != ResolvedPolicy::kUnlimited;
    if (ends && (p.stored < 0 || p.stored > kMost || p.every < 1 || p.every > kMost || p.budget < 1))
        stop("a policy that does not add up", text);
    if (p.recent < 0 || p.sinks < 0 || p.newest < 0 || p.horizon < 1) stop("a negative number", text);
    for (const int row : {0, 19, 20, 21, 1000, 1 << 30}) {
        const float tau = p.tau_at(row);
        if (!std::isfinite(tau) || !(tau > 0)) stop("no temperature", text);
        (void)p.evicts_after(row);
        (void)p.hides(row, row / 2);
        (void)p.exceeded(row, row);
    }
    (void)p.attended_when_full();
    if (!std::isfinite(p.gain) || !std::isfinite(p.damping) || !(p.alpha >= 0 && p.alpha <= 1))
        stop("a factor that is none", text);
}

void check(std::string_view input) {
    const LaneSpec spec = parse_lane_spec(input);
    const std::string text = format_lane_spec(spec);
    try {
        if (!(parse_lane_spec(text) == spec))
            stop("another lane comes back", text, format_lane_spec(parse_lane_spec(text)));
        for (const int n_prompt : {1, 20, 1 << 20})
            for (const int n_generate : {0, 1, 1 << 24}) {
                parse_lane_spec(format_effective_spec(spec, n_prompt, n_generate));
                for (const HeadGrid& heads : grids()) {
                    if (!check_overrides(spec.policy, heads).empty()) continue;
                    const ResolvedPolicy policy = resolve(spec.policy, n_prompt, n_generate, heads);
                    check_resolved(policy, text);
                    for (const ResolvedPolicy& variant : policy.variants) check_resolved(variant, text);
                }
            }
    } catch (const Error& error) {
        stop("what was written is refused", text, error.what());
    }
    if (!(parse_kv_sharing(format_kv_sharing(spec.sharing)).kind == spec.sharing.kind))
        stop("another sharing", text);
}

constexpr std::string_view kWords[] = {"full",        "window",      "sink",
                                       "dilated",     "key",         "h2o",
                                       "tova",        "keyformer",   "a2sf",
                                       "budget",      "recent",      "sinks",
                                       "alpha",       "tau",         "horizon",
                                       "tau_delta",   "noise",       "draw",
                                       "gain",        "scope",       "pool",
                                       "prefill",     "every",       "damping",
                                       "score_dtype", "kv_dtype",    "seed",
                                       "positions",   "dilation",    "dialect",
                                       "shadow",      "kv",          "merge",
                                       "compensate",  "model",       "all",
                                       "rest",        "cosine",      "linear",
                                       "gumbel",      "gaussian",    "constant",
                                       "none",        "token",       "row",
                                       "head",        "layer",       "shared",
                                       "mean",        "sum",         "max",
                                       "oneshot",     "stepwise",    "fp32",
                                       "fp16",        "bf16",        "paper",
                                       "released",    "original",    "cache",
                                       "compressed",  "on",          "off",
                                       "uniform",     "own",         "mha",
                                       "gqa:4",       "mqa",         "(mlkv:m=2,g=1)",
                                       "@L0-3.H2",    "@L1,L3.G0",   "@H0",
                                       "(0:1 9:2)",   "1..2@cosine", "L0",
                                       "H1",          "..",          "%",
                                       "heads",       "duo",         "(64 all / 2*1.5x)",
                                       "choose",      "score",       "protect",
                                       "(s+p)",       "(-knorm)",    "2..5"};

}  // namespace

static int run(const std::uint8_t* data, std::size_t size) {
    expect_error_or_none([&] { check(text_of(data, size)); });
    expect_error_or_none(
        [&] { changed_lane_spec(parse_lane_spec("h2o:alpha@L0=0.5"), text_of(data, size)); });
    return 0;
}

static std::size_t mutate(std::uint8_t* data, std::size_t size, std::size_t max_size, unsigned seed) {
    return mutate_pieces(data, size, max_size, seed, ":,=@.-() %", kWords);
}

static const FuzzTarget target("lane_spec", run, mutate);

}  // namespace keyhole::fuzz_lane_spec
