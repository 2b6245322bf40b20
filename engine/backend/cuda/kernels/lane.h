/// A lane as kernels see it: its slots, its running scores and the numbers of its policy at one row. All of
/// it lies in device memory, so a captured graph stays valid while caches fill and empty. Plain structs, host
/// and device. Knows no model.
///
/// Layout of a KV head's slots, so that neighbouring threads read neighbouring bytes:
///     keys    [head_dim / 8][capacity][8]    one thread per slot
///     values  [capacity][head_dim]           one thread per pack of dimensions
///
/// KV heads are numbered over the whole model; so are query heads: layer * n_heads + head.
#pragma once

#include "engine/backend/cuda/kernels/number.h"
#include "engine/policy/formula.h"
#include "engine/policy/math.h"
#include "engine/policy/query_maths.h"
#include "engine/policy/row_formula.h"

#include <cstddef>
#include <cstdint>

namespace keyhole::cuda {

inline constexpr int kScores = 5;          ///< accumulators, in the order of enum Accumulator
inline constexpr int kByScoreFormula = 4;  ///< the one that a formula of `score` folds

/// What makes a stored key or value infinity or NaN: the type cannot hold the number, or the number already
/// was. One byte each, 0: has not happened.
enum FaultKind { kRoundedKey, kRoundedValue, kBadKey, kBadValue, kFaultKinds };

/// One KV head of one lane.
template <class T>
struct DeviceHead {
    T* keys;
    T* values;
    std::int32_t* positions;  ///< [capacity]
    std::uint8_t* pinned;     ///< [capacity]
    std::int32_t count;       ///< stored tokens
    std::int32_t capacity;
    float* reach = nullptr;  ///< [capacity] `wvnorm`, or kReachDue; null where no row names it
};

/// The running scores of one query head of one lane, by slot of the KV head that it reads.
struct HeadScores {
    float* score[kScores];  ///< [capacity] each, null where it does not run
    float* noise;           ///< [capacity] drawn once per token, or null
    /// Attention of the newest `window` rows, row r at [(r % window) * kept_stride], or their logits
    /// (RowRule::as_rkv_code); null where none is kept.
    /// Slots of tokens that are younger than the row, or of another fair span, hold no number.
    float* kept;
    std::int64_t kept_stride;
    std::int32_t variant;  ///< index of its rule among the lane's rules
    std::int32_t window;   ///< 0: no rows are kept

    KH_FN float* kept_row(int row) const { return kept + row % window * kept_stride; }
};

/// ResolvedPolicy at one row, as numbers.
struct RowRule {
    std::uint64_t seed;
    // Scoring.
    float alpha, gain, tau, weight;
    std::int32_t tempers, score_dtype, noise_kind, noise_draw;
    // ResolvedPolicy::hides: the row does not see `hidden_position` (-1: none). With a dilated window it sees
    // only every (dilation + 1)-th of the tokens before it, `span` of them.
    std::int32_t hidden_position, dilation, span;
    // Selection.
    std::int32_t stored, newest, sinks;  ///< tokens kept after the eviction; the last two are protected
    std::int32_t dropped_position;       ///< evicted in any case (released Keyformer); -1: none
    std::int32_t evicts;                 ///< this row evicts when too many are stored
    std::int32_t needs_scores;           ///< pooled scores are wanted even where nothing leaves
    std::int32_t accumulator, pool;      ///< how a unit's score is formed
    std::int32_t due_at;                 ///< stored tokens at which an eviction is due
    std::int32_t n_prompt;
    std::int32_t window;  ///< what formulas name so, as the next
    float mix;
    std::int32_t unit;         ///< tokens of the text that leave together
    std::int32_t kept_from;    ///< the row is kept for tokens from this position on, those of its fair span
    std::int32_t as_rkv_code;  ///< ResolvedPolicy::ranks_as_rkv_code
    std::int32_t score;        ///< which of LaneView::score; -1: none
    std::int32_t unused;
};

/// KV heads that are selected together, [first_head, last_head). Where they do not follow each other
/// (Unit::step), the host selects.
struct DeviceUnit {
    std::int32_t first_head, last_head;
    std::int32_t variant;
    std::int32_t on_host;  ///< 1: its heads hold different tokens, or are apart, so the host selects
};

/// How a KV head shares its budget after a row, with [first, last) of those for which tokens leave.
struct ShareRule {
    double floor;  ///< share of its own budget that it keeps in any case
    std::int32_t first, last;
    std::int32_t due;     ///< 1: tokens leave after the row
    std::int32_t rounds;  ///< 1: each head's part is rounded by itself (released Ada-KV)
};

/// A calibration's statistics of the queries of a lane's model, and the mean rotations at the lane's row.
struct LaneQueries {
    const double* turn_of_expected;  ///< [2 * pairs.n] as turned_back() takes it; so the next
    const double* turn_of_tri;
    const double* scales;     ///< [n_layers * n_heads] of logits; so the next for each of these heads
    const float* mean;        ///< [head_dim]
    const float* covariance;  ///< [head_dim, head_dim]; null where no formula names `expected`
    const double* lacks;      ///< [pairs.n] lacking_lengths() of common/query_statistics.h
    RotatedPairs pairs;
};

/// How the rows of a KV head read pages of the text (ResolvedPolicy::read).
struct PageRule {
    std::int32_t length;  ///< tokens of the text in a page; 0: the row reads all
    std::int32_t n_read, reads_own;
    std::int32_t unused;
};

/// The pages of a lane whose row reads some of them. Position p is in page p / length.
struct LanePages {
    const PageRule* rules;    ///< [n_kv_heads]; null: the row reads all
    float* extremes;          ///< [n_kv_heads, head_dim, least and largest, stride] of the keys in a page
    std::int32_t* n_tokens;   ///< [n_kv_heads, stride] in a page
    std::int32_t stride;      ///< pages that there is room for
    std::int32_t stale_from;  ///< pages from this position's on are to be computed anew

    KH_FN bool reads_some(int g) const { return rules != nullptr && rules[g].length > 0; }
    KH_FN float* extreme(int g, int head_dim, int c, int which, int page) const {
        return extremes + ((static_cast<std::int64_t>(g) * head_dim + c) * 2 + which) * stride + page;
    }
};

template <class T>
struct LaneView {
    DeviceHead<T>* heads;              ///< [n_kv_heads]
    const HeadScores* scores;          ///< [n_layers * n_heads]
    const DeviceUnit* units;           ///< [n_units]
    const std::int32_t* unit_of_head;  ///< [n_kv_heads]
    const RowRule* rules;              ///< [variants]; 0: the policy itself
    /// For positions other than the original ones (Positions): by slot, how many positions keys are turned
    /// back, [n_kv_heads, steps_stride], and the place of the row's token in each KV head. Null for original
    /// positions.
    const std::int32_t* steps;
    const std::int32_t* places;
    std::int32_t n_units;
    std::int32_t row;  ///< position of the current token
    std::int32_t steps_stride, list_stride;
    /// Formulas of the lane; null: pooled scores rank, sinks and newest alone are protected. Slots in text
    /// order with the current token: for formulas, blocks of the text that leave, shared budgets, and pages
    /// where slots are in another order; else null. For formulas: `future` and `repeat` of these tokens,
    /// [n_kv_heads, list_stride].
    const FormulaTable* choose;
    const FormulaTable* protect;
    const std::int32_t* order;
    const float* future;
    const float* repeat;
    const FormulaTable* unsmoothed;  ///< orders tokens that `choose` ranks alike; or null
    const FormulaTable* score;       ///< those that RowRule::score names; they fold scores[kByScoreFormula]
    /// Where KV heads share budgets after rows, [n_units], else null; and how many tokens leave those that
    /// are due, which CountBest writes.
    const ShareRule* shares;
    std::int32_t* n_shared;
    const LaneQueries* queries;  ///< of `expected` and `tri`; null: no query is known
    std::int32_t n_kept_rows;    ///< of HeadScores::kept with the current one
    std::int32_t unused;
    LanePages pages;
};

/// A head and a lane whose numbers may have any type: the host's view. Only pointers depend on the type.
using AnyHead = DeviceHead<std::byte>;
using AnyLane = LaneView<std::byte>;

/// Query heads in the order of the KV heads that they read; those of g are readers[offset[g]] ..
/// readers[offset[g + 1] - 1].
struct ReaderTable {
    const std::int32_t* readers;
    const std::int32_t* offset;
};

KH_FN bool is_hidden(const RowRule& rule, int row, int position) {
    if (rule.dilation > 0) {
        const int back = row - position;
        return back % (rule.dilation + 1) != 0 || back / (rule.dilation + 1) >= rule.span;
    }
    return position == rule.hidden_position;
}

KH_FN float noise_of(const RowRule& rule, int layer, int head, int row, int position) {
    return noise_at(static_cast<NoiseKind>(rule.noise_kind), static_cast<NoiseDraw>(rule.noise_draw),
                    rule.seed, layer, head, row, position);
}

}  // namespace keyhole::cuda
