/// The point in policy space that a lane decodes with. Plain values; any thread; knows base only.
///
///     score <- alpha * score + softmax((logit + gain * noise) / tau(t))
///     protect the first `sinks` and the newest `recent` tokens, keep the `budget` best, pool over query heads, select per `scope`.
///
/// Full, Window, StreamingLLM, Key-only, H2O, TOVA, Keyformer and A2SF are presets: points in this space.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace keyhole {

enum class Preset { full, window, sink, key, h2o, tova, keyformer, a2sf };
enum class NoiseKind { none, gumbel, gaussian, constant };
enum class NoiseDraw { token, row };  ///< one draw a token for the whole run, or a fresh one in every row
enum class Scope { head, layer, shared };  ///< one kept set per KV head, per layer, or for the whole model
enum class Pool { mean, sum, max };        ///< over the query heads that read the unit
enum class PrefillMode { oneshot, stepwise };  ///< evict once after the prompt, or after every prompt row
enum class ScoreType { fp32, fp16, bf16 };     ///< the type in which scores accumulate

/// A number of tokens as the user says it; resolve() turns it into tokens.
struct Amount {
    enum class Unit { all, rest, tokens, percent };
    Unit unit = Unit::tokens;
    double value = 0;  ///< tokens, or percent of the prompt (budget) or of the budget (recent)
    bool operator==(const Amount&) const = default;
};

/// Temperature of the score softmax over decode rows t = 1, 2, ...; prompt rows use begin.
///     linear: begin + t * (end - begin) / horizon          Keyformer, section 3; held at `end` after the horizon
///     cosine: begin + (1 - cos(pi * t / horizon)) / 2 * (end - begin)
struct TauSchedule {
    enum class Shape { constant, linear, cosine, points };
    Shape shape = Shape::constant;
    double begin = 1;
    double end = 1;
    /// (t, tau), t ascending from 0, straight between, held outside; prompt rows are t = 0. Shape::points only, which reads
    /// neither begin nor end; the lane spec sets them to the first and last tau.
    std::vector<std::pair<double, double>> points;
    bool operator==(const TauSchedule&) const = default;
};

struct PolicyParams {
    Preset preset = Preset::full;  ///< the name that the point started from
    Amount budget{Amount::Unit::percent, 50};
    Amount recent{Amount::Unit::tokens, 0};
    int sinks = 0;
    double alpha = 1;  ///< forgetting factor, 0..1 (A2SF); 1 sums, 0 keeps the last row only
    TauSchedule tau;
    int horizon = 0;  ///< T of the tau schedule in decode rows; 0: what the session generates
    NoiseKind noise = NoiseKind::none;
    NoiseDraw draw = NoiseDraw::token;
    double gain = 1;
    Scope scope = Scope::head;
    Pool pool = Pool::mean;
    PrefillMode prefill = PrefillMode::oneshot;
    int every = 1;       ///< rows between evictions
    double damping = 1;  ///< factor on the contributions of decode rows (Keyformer, figure 5)
    ScoreType score_dtype = ScoreType::fp32;
    std::uint64_t seed = 1;  ///< of the noise
    bool operator==(const PolicyParams&) const = default;
};

/// The defaults of a preset (design: table of presets).
PolicyParams preset_params(Preset preset);

/// What is wrong with the values, one sentence each, empty when all is well. Never throws. Values that only do not fit
/// (recent above budget) are no fault: resolve() clamps them.
std::vector<std::string> validate(const PolicyParams& params);

/// PolicyParams made concrete for a prompt: all that a backend needs besides the row number.
struct ResolvedPolicy {
    static constexpr int kUnlimited = 0x7fffffff;
    int budget = kUnlimited;  ///< k >= 1, stored tokens a unit after an eviction
    int recent = 0;           ///< w <= k - sinks
    int sinks = 0;            ///< <= k
    float alpha = 1;
    float gain = 1;
    float damping = 1;
    NoiseKind noise = NoiseKind::none;
    NoiseDraw draw = NoiseDraw::token;
    Scope scope = Scope::head;
    Pool pool = Pool::mean;
    PrefillMode prefill = PrefillMode::oneshot;
    ScoreType score_dtype = ScoreType::fp32;
    int every = 1;
    int horizon = 1;
    int n_prompt = 0;  ///< n: rows below are prompt rows
    std::uint64_t seed = 1;
    TauSchedule tau;
    bool operator==(const ResolvedPolicy&) const = default;

    bool evicts() const { return budget != kUnlimited; }
    /// Softmax of the scores differs from the attention's own.
    bool tempers() const;
    /// tau in force at a row: t = row - n_prompt + 1 for decode rows, tau.begin for prompt rows.
    float tau_at(int row) const;
    /// The newest row of a block of `every` rows evicts; the last prompt row always does.
    bool evicts_after(int row) const;
};

/// Percent forms are int(n * percent / 100), recent from the truncated budget; then k >= 1, sinks <= k, recent <= k - sinks.
/// n_generate: tokens that the session will generate, the default horizon (0: unknown, 256).
ResolvedPolicy resolve(const PolicyParams& params, int n_prompt, int n_generate);

}  // namespace keyhole
