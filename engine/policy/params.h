/// The point in policy space that a lane decodes with. Plain values; any thread; knows base and formulas.
///
///     score <- alpha * score + softmax((logit + gain * noise) / tau(t)), or the formula `score`
///     pool over query heads; at a selection, rank by `choose`, which is the pooled score or a formula;
///     protect the first `sinks`, the newest `recent` tokens and what `protect` says, keep the `budget`
///     best, select per `scope`.
///
/// Full, Window, StreamingLLM, Key-only, H2O, TOVA, Keyformer, A2SF, random, oracle, KNorm, KeyDiff, SnapKV,
/// PyramidKV, Ada-KV, R-KV, DuoAttention, ChunkKV, LagKV, CAOTE, KVzip, CriticalKV, Expected Attention, Quest
/// and TriAttention are presets: points in this space.
#pragma once

#include "engine/base/index.h"
#include "engine/base/kv_type.h"
#include "engine/policy/calibration.h"
#include "engine/policy/formula.h"
#include "engine/policy/head_table.h"
#include "engine/policy/spans.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace keyhole {

enum class Preset {
    full,
    window,
    sink,
    dilated,
    key,
    h2o,
    tova,
    keyformer,
    a2sf,
    random,
    oracle,
    knorm,
    keydiff,
    snapkv,
    pyramidkv,
    adakv,
    rkv,
    duo,
    chunk,
    lagkv,
    caote,
    kvzip,
    critical,
    expected,
    quest,
    tri
};
/// The paper's algorithm, or its released code where the two differ (dialect_help() says how).
enum class Dialect { paper, released };
enum class NoiseKind { none, gumbel, gaussian, constant };
enum class NoiseDraw { token, row };  ///< one draw a token for the whole run, or a new one in every row
/// One kept set per KV head, per layer, for the whole model, or for the KV heads of equal number of all
/// layers.
enum class Scope { head, layer, shared, column };
/// Returns whether KV heads of several layers have one kept set.
constexpr bool spans_layers(Scope scope) {
    return scope == Scope::shared || scope == Scope::column;
}
enum class Pool { mean, sum, max };            ///< over the query heads that read the KV head
enum class PrefillMode { oneshot, stepwise };  ///< evict once after the prompt, or after every prompt row
enum class Evict { always, prompt, decode };   ///< the rows that may evict
/// Who shares the budgets of the heads: none, the heads of a layer (Ada-KV), all heads of the model.
enum class Alloc { uniform, adaptive, global };
enum class ScoreType { fp32, fp16, bf16 };  ///< the type in which scores accumulate
/// The position that a key is rotated to: its place in the text, its index in the cache (StreamingLLM), or
/// its place with long gaps shortened (TOVA, extrapolation; compressed_gap() in math.h).
enum class Positions { original, cache, compressed };

/// An amount as the user writes it; resolve() converts it to tokens.
struct Amount {
    /// beside: tokens beside those of the prompt
    enum class Unit { all, rest, tokens, percent, beside };
    Unit unit = Unit::tokens;
    double value = 0;  ///< tokens, or percent of the prompt (budget) or of the budget (recent)
    bool operator==(const Amount&) const = default;
};

/// A value of `score`, `choose` or `protect`: a formula, or a word for one; of `spans`: names. validate()
/// reads it.
struct FormulaText {
    std::string text;
    bool operator==(const FormulaText&) const = default;
};

/// Temperature of the score softmax over decode rows t = 1, 2, ...; prompt rows use begin.
///     linear: begin + t * (end - begin) / horizon          Keyformer, section 3
///     cosine: begin + (1 - cos(pi * t / horizon)) / 2 * (end - begin)
/// Both stay at `end` after the horizon, except that a linear one goes on with ResolvedPolicy::tau_runs_on.
struct TauSchedule {
    enum class Shape { constant, linear, cosine, points };
    Shape shape = Shape::constant;
    double begin = 1;
    double end = 1;
    /// Points (t, tau) with t ascending from 0; linear between them, constant outside; prompt rows are t =
    /// 0. Used by Shape::points only, which ignores begin and end; the lane spec sets those to the first
    /// and last tau.
    std::vector<std::pair<double, double>> points;
    bool operator==(const TauSchedule&) const = default;
};

/// A value for some layers and heads, such as `alpha@L0-3.H2=0.5`. The last override that covers a head
/// applies.
struct Override {
    enum class Field { budget, recent, alpha, tau, gain, read, score, choose, protect };
    static constexpr int kAll = 0x7fffffff;  ///< as last index: up to the end
    Field field = Field::alpha;
    int first_layer = 0, last_layer = kAll;  ///< inclusive
    int first_head = 0, last_head = kAll;    ///< inclusive; query heads, or KV heads with by_kv_head
    Amount amount;                           ///< budget, recent, read
    double value = 0;                        ///< alpha, gain
    TauSchedule tau;                         ///< tau
    bool by_kv_head = false;                 ///< heads are KV heads of their layer: `G2` in place of `H2`
    FormulaText formula{};                   ///< score, choose, protect
    static constexpr bool is_formula(Field of) { return of >= Field::score; }
    bool is_formula() const { return is_formula(field); }
    /// kv_head: the one that the query head reads, within its layer.
    bool covers(int layer, int head, int kv_head) const {
        const int index = by_kv_head ? kv_head : head;
        return layer >= first_layer && layer <= last_layer && index >= first_head && index <= last_head;
    }
    bool operator==(const Override&) const = default;
};

struct PolicyParams {
    Preset preset = Preset::full;  ///< the preset that the values started from
    Dialect dialect = Dialect::paper;
    Amount budget{Amount::Unit::percent, 50};
    Amount recent{Amount::Unit::tokens, 0};
    int sinks = 0;
    double alpha = 1;  ///< forgetting factor, 0..1 (A2SF); 1 sums, 0 keeps the last row only
    TauSchedule tau;
    /// T of the tau schedule in decode rows; 0: the number of tokens that the session generates
    int horizon = 0;
    /// The rise of a linear tau in every decode row, in place of (end - begin) / horizon; 0: as the horizon
    /// says. Keyformer's scripts have it as an option.
    double tau_delta = 0;
    NoiseKind noise = NoiseKind::none;
    NoiseDraw draw = NoiseDraw::token;
    double gain = 1;
    Scope scope = Scope::head;
    Pool pool = Pool::mean;
    PrefillMode prefill = PrefillMode::oneshot;
    int every = 1;         ///< rows between evictions
    int buffer = 0;        ///< tokens over the budget at which an eviction is due; 0: one is enough
    int unit = 1;          ///< tokens of the text that stay or leave together
    double threshold = 0;  ///< competing tokens that rank below it leave, within the budget too; 0: none
    Evict evict = Evict::always;
    Alloc alloc = Alloc::uniform;
    Amount floor{Amount::Unit::percent, 20};  ///< of its own budget that a head keeps in any case, adaptive
    double pyramid = 0;  ///< the top layer keeps 1/pyramid of the mean, the lowest the more; 0: all alike
    FormulaText score{"attention"};  ///< what a row makes of a token's score
    FormulaText choose{"s"};         ///< what a selection ranks; larger stays
    FormulaText protect{"none"};     ///< tokens that never compete, beside sinks and recent
    FormulaText spans{"none"};       ///< named positions, and whether they share the budget: spans_of()
    int window = 32;                 ///< newest rows whose attention `win` is the mean of
    int kernel = 0;    ///< of `smooth(x)`: the width of an average, minus that of a maximum; 0: none
    double mix = 0.1;  ///< lambda of R-KV, a name in formulas
    int ahead = 512;   ///< coming positions that `expected` looks at
    CalibrationRef calibration;         ///< queries that `expected` and `tri` rank by; none: the lane's own
    Amount read{Amount::Unit::all, 0};  ///< stored tokens that a decode row attends to, whole pages
    int page = 16;                      ///< tokens of the text in a page
    double damping = 1;                 ///< factor on the contributions of decode rows (Keyformer, figure 5)
    ScoreType score_dtype = ScoreType::fp32;
    KvType kv_dtype = KvType::automatic;  ///< type of stored keys and values
    std::uint64_t seed = 1;               ///< seed of the noise
    int dilation = 0;                     ///< tokens skipped between two attended ones; preset dilated only
    Positions positions = Positions::original;
    bool shadow = false;  ///< also run full attention on the lane's own queries, for measures only
    HeadTable heads;      ///< budgets of KV heads; overrides act after them
    std::vector<Override> overrides;
    bool operator==(const PolicyParams&) const = default;

    /// Returns the override that applies to a query head; null: none does. kv_head: as Override::covers().
    const Override* override_at(Override::Field field, int layer, int head, int kv_head) const {
        for (std::size_t i = overrides.size(); i-- > 0;)
            if (overrides[i].field == field && overrides[i].covers(layer, head, kv_head))
                return &overrides[i];
        return nullptr;
    }
    bool has_formula_overrides() const {
        return std::any_of(overrides.begin(), overrides.end(),
                           [](const Override& o) { return o.is_formula(); });
    }
    /// Returns the words and formulas that `score`, `choose` or `protect` has anywhere, each once: the lane's
    /// own, then those of overrides.
    std::vector<std::string> formula_texts(Override::Field field) const;
    /// Returns whether layers or heads may have values of their own, which takes a HeadGrid to resolve.
    bool differs_by_head() const { return !overrides.empty() || !heads.empty() || pyramid > 0; }
};

/// Returns what the other options say of `choose` and `protect`.
inline FormulaSetting formula_setting(const PolicyParams& params) {
    return {params.kernel, params.spans.text};
}
inline FormulaRef choose_formula(const PolicyParams& params, FormulaFault* fault = nullptr) {
    return choose_formula(params.choose.text, fault, formula_setting(params));
}
inline FormulaRef protect_formula(const PolicyParams& params, FormulaFault* fault = nullptr) {
    return protect_formula(params.protect.text, fault, formula_setting(params));
}
/// The formula of rows as it is written; resolve() keeps the rows of fair spans apart.
inline FormulaRef score_formula(const PolicyParams& params, FormulaFault* fault = nullptr) {
    return score_formula(params.score.text, fault, {0, params.spans.text});
}

/// Returns whether a formula that the lane has anywhere, for all heads or for some, names the quantity.
bool names_anywhere(const PolicyParams& params, Quantity q);

/// Returns the defaults of a preset.
PolicyParams preset_params(Preset preset);

/// Returns whether code was released for the preset, so that it has a second dialect.
bool has_released_code(Preset preset);

/// Returns the faults of the values, one sentence each; empty when there are none. Never throws. Values
/// that are only too large together (recent above budget) are no fault: resolve() clamps them.
std::vector<std::string> validate(const PolicyParams& params);

/// Returns the faults of an override of a formula in the lane that has these values: of the formula alone,
/// since only check_overrides() knows what the head has beside it.
std::vector<std::string> formula_override_faults(const PolicyParams& params, const Override& o);

/// The heads of a model. Overrides are expanded over them; check_overrides() needs to know which query
/// heads share a KV head. A plain copy from KvLayout, since policy does not know the model. An empty grid
/// ignores overrides.
struct HeadGrid {
    int n_layers = 0;
    int n_heads = 0;           ///< query heads a layer
    std::vector<int> kv_head;  ///< [n_layers * n_heads] KV head that each query head reads
    /// Returns the KV head that a query head reads, counted within the layer that owns it.
    int kv_in_layer(int layer, int head) const {
        return kv_head[to_index(layer * n_heads + head)] - kv_head[to_index(layer * n_heads)];
    }
};

/// PolicyParams resolved for a prompt: everything that a backend needs except the row.
struct ResolvedPolicy {
    static constexpr int kUnlimited = 0x7fffffff;
    int budget = kUnlimited;  ///< k >= 1 as the user counts it
    /// Tokens that a unit stores after an eviction: k; k - 1 where the released code counts the row's own
    /// token (window, keyformer); the whole span of a dilated window. 0 for a released window of 1.
    int stored = kUnlimited;
    int recent = 0;  ///< w, at most k - sinks, as the user counts it
    /// Newest tokens that an eviction always keeps: w; w - 1 with Gap::dropped; at least 1 for the released
    /// a2sf; all stored tokens for the windows.
    int newest = 0;
    int sinks = 0;  ///< <= k
    float alpha = 1;
    float gain = 1;
    float damping = 1;
    NoiseKind noise = NoiseKind::none;
    NoiseDraw draw = NoiseDraw::token;
    Scope scope = Scope::head;
    Pool pool = Pool::mean;
    PrefillMode prefill = PrefillMode::oneshot;
    ScoreType score_dtype = ScoreType::fp32;
    KvType kv_dtype = KvType::automatic;
    Positions positions = Positions::original;
    int dilation = 0;
    /// The treatment of the column that leaves the recent window in the released mask codes (policies,
    /// facts 2 and 5): none; hidden from one row; evicted for good.
    enum class Gap { none, hidden, dropped };
    Gap gap = Gap::none;
    bool counts_columns = false;  ///< evicts when the text, not the cache, exceeds k (released mask codes)
    bool keeps_memory = false;    ///< only masks: no memory goes back to the system (released mask codes)
    bool tau_runs_on = false;     ///< a linear tau goes on past the horizon (released Keyformer: no clamp)
    bool shadow = false;
    /// false: computes no scores, and so cannot evict. No spec sets it; benchmarks use it to measure the
    /// cost of scores.
    bool makes_scores = true;
    int every = 1;
    int buffer = 0;
    int unit = 1;
    float threshold = 0;  ///< 0: none
    Evict evict = Evict::always;
    Alloc alloc = Alloc::uniform;
    double floor = 0;            ///< share of its own budget that a head keeps in any case
    bool rounds_shares = false;  ///< rounds each head's share by itself (released Ada-KV)
    /// As R-KV's code: `win` is of the group's largest logits over what stands before the newest tokens, and
    /// `redundancy` spares the first token in rows without a like key.
    bool ranks_as_rkv_code = false;
    int window = 32;
    float mix = 0;
    int ahead = 512;
    CalibrationRef calibration{};
    int read = kUnlimited;  ///< tokens that a decode row attends to; all, or whole pages of them
    int page = 16;
    bool reads_own_page = true;  ///< the page of the row's token is always read; the released code: no
    FormulaRef score{};          ///< none: as folded_score() says
    FormulaRef choose{};         ///< none: the pooled score
    FormulaRef protect{};        ///< none: sinks and newest alone
    /// Spans that share the budget by their lengths, each with a selection of its own; empty: none do.
    std::vector<NamedSpan> fair{};
    int horizon = 1;
    int n_prompt = 0;  ///< n: rows below n are prompt rows
    std::uint64_t seed = 1;
    TauSchedule tau;
    /// The distinct policies of heads with overrides (without variants of their own), and the index of each
    /// query head's variant, [n_layers * n_heads], -1: this policy. Both empty without overrides.
    std::vector<ResolvedPolicy> variants;
    std::vector<int> variant_of_head;
    int n_heads = 0;  ///< query heads a layer; 0 without overrides
    bool operator==(const ResolvedPolicy&) const = default;

    bool evicts() const { return stored != kUnlimited; }
    /// Returns whether tokens leave for what they rank, too. Without a budget `stored` is no limit then.
    bool has_threshold() const { return threshold != 0; }
    /// Returns whether a selection evaluates a formula.
    bool has_formula() const { return choose || protect; }
    /// Returns whether a formula of selections names the quantity. As all that says no more, it looks at this
    /// policy only, not at its variants, whose formulas may be others: any_names() asks them too.
    bool names(Quantity q) const { return (choose && choose->names(q)) || (protect && protect->names(q)); }
    bool any_names(Quantity q) const {
        return any([q](const ResolvedPolicy& one) { return one.names(q); });
    }
    /// Returns whether some head has a formula of rows.
    bool any_score() const {
        return any([](const ResolvedPolicy& one) { return static_cast<bool>(one.score); });
    }
    /// Returns whether tokens are ranked only where a selection needs it, since that takes long.
    bool ranks_late() const {
        return names(Quantity::redundancy) || names(Quantity::wvnorm) || names_queries();
    }
    /// Returns whether a formula of selections names what follows from queries before their rotation.
    bool names_queries() const { return names(Quantity::expected) || names(Quantity::tri); }
    /// Returns how many of the newest rows of attention the cache keeps of a token: its fair span has a part
    /// of the window; what a prompt in one piece needs of them comes from the prompt.
    int kept_rows() const {
        const int n_spans = fair.empty() ? 1 : static_cast<int>(fair.size());
        return any_names(Quantity::win) && evicts_at_rows() ? (window + n_spans - 1) / n_spans : 0;
    }
    static constexpr int kKeptQueries = 256;
    /// Returns the same for queries before their rotation.
    int kept_queries() const {
        const bool named = any([](const ResolvedPolicy& one) { return one.names_queries(); });
        return named && !calibration && evicts_at_rows() ? kKeptQueries : 0;
    }
    /// Returns whether it evicts after rows, and not only once after a prompt in one piece.
    bool evicts_at_rows() const {
        return (evict != Evict::prompt || prefill == PrefillMode::stepwise) &&
               any([](const auto& one) { return one.evicts(); });
    }
    /// Returns whether heads share their budgets at the selections after rows, and not only once after a
    /// prompt in one piece.
    bool shares_at_rows() const {
        return alloc != Alloc::uniform && (evict != Evict::prompt || prefill == PrefillMode::stepwise);
    }
    /// Returns whether it may evict in the phase of a row: prompt or decode.
    bool evicts_in_phase(int row) const {
        return evict == Evict::always || (evict == Evict::prompt) == (row < n_prompt);
    }
    /// Returns the least number of stored tokens at which an eviction for the budget is due.
    int due_at() const { return beyond_stored(std::max(buffer, 1)); }
    /// Returns the most tokens that a unit stores before an eviction.
    int most_stored() const { return beyond_stored(std::int64_t{every} + std::max(buffer, 1) - 1); }
    /// Returns whether the cache grows with the text, or a head may take more than its own budget.
    bool grows() const {
        return !evicts() || keeps_memory || evict == Evict::prompt || alloc != Alloc::uniform ||
               has_threshold();
    }
    /// Returns whether the softmax of the scores differs from the attention's own. Looks at this policy
    /// only, not at its variants.
    bool tempers() const;
    /// Returns tau at a row: t = row - n_prompt + 1 for decode rows, tau.begin for prompt rows. At least
    /// 1e-30, so that logit / tau stays finite; the softmax is an argmax long before.
    float tau_at(int row) const;
    /// Returns whether the row ends a block of `every` rows and so evicts. The last prompt row always does.
    bool evicts_after(int row) const;
    /// Returns whether a unit that stores n tokens after `row` must evict.
    bool exceeded(int n, int row) const {
        const bool is_due = n >= due_at() || (has_threshold() && n > sinks + newest);
        return evicts() && is_due && (!counts_columns || row + 1 > budget) && evicts_in_phase(row);
    }
    /// Returns whether a stored position is hidden from this row: the gaps of a dilated window, or the
    /// column that H2O's released mask leaves out for one row. A row may be hidden from itself (released
    /// H2O with recent 0).
    bool hides(int row, int position) const;
    bool hides_any() const { return hides_places() || reads_pages(); }
    bool hides_places() const { return dilation > 0 || gap == Gap::hidden; }
    /// Returns whether decode rows attend to some pages of what is stored.
    bool reads_pages() const { return read != kUnlimited; }
    bool any_reads_pages() const {
        return any([](const ResolvedPolicy& one) { return one.reads_pages(); });
    }
    /// Returns how many pages a decode row attends to.
    int n_pages_read() const { return std::max(read / page, reads_own_page ? 1 : 3); }
    /// Returns the number of tokens that a decode row attends to once the budget is full, itself included.
    int attended_when_full() const;

    /// Returns `stored` and n tokens more; below kUnlimited, which a threshold without a budget stores.
    int beyond_stored(std::int64_t n) const {
        return static_cast<int>(std::min<std::int64_t>(stored + n, kUnlimited - 1));
    }

    /// Returns the policy of a query head.
    const ResolvedPolicy& at(int layer, int head) const {
        if (variant_of_head.empty()) return *this;
        const int v = variant_of_head[to_index(layer * n_heads + head)];
        return v < 0 ? *this : variants[to_index(v)];
    }
    /// Returns whether a test holds for this policy or for a variant.
    template <class Test>
    bool any(Test test) const {
        if (test(*this)) return true;
        for (const ResolvedPolicy& variant : variants)
            if (test(variant)) return true;
        return false;
    }
};

/// Resolves parameters for a prompt of n_prompt tokens. Percent forms are int(n * percent / 100), recent
/// from the truncated budget; then k >= 1, sinks <= k, recent <= k - sinks. The released dialect sets the
/// values that its code fixes (prefill, cadence, noise draws) and counts as that code does: int(ratio * n)
/// with the ratio as a double for h2o and a2sf.
///
/// n_generate: tokens that the session will generate, the default horizon (0: unknown, 256). Overrides must
/// fit the grid: see check_overrides(). A layer that borrows its KV heads takes the values of their owner.
ResolvedPolicy resolve(const PolicyParams& params, int n_prompt, int n_generate, const HeadGrid& heads = {});

/// Returns the faults of the overrides on this model, one sentence each: layers or heads that it does not
/// have, an override finer than the unit that is selected together under the scope, or formulas of a head
/// that do not go together.
std::vector<std::string> check_overrides(const PolicyParams& params, const HeadGrid& heads);

}  // namespace keyhole
