/// Evaluates the formulas of a policy for one unit, on the host: what a selection ranks, and which tokens
/// cannot leave. Pure functions; any thread; knows no cache. CUDA twin: backend/cuda/kernels/choice.h.
#pragma once

#include "engine/backend/common/query_statistics.h"
#include "engine/backend/common/shared.h"
#include "engine/base/index.h"
#include "engine/model/kv_layout.h"
#include "engine/policy/future.h"
#include "engine/policy/params.h"
#include "engine/policy/quantity_table.h"
#include "engine/policy/ranked_unit.h"
#include "engine/policy/row.h"
#include "engine/policy/selection.h"
#include "engine/policy/win_rows.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace keyhole {

/// Returns whether a selection's formula names a quantity of which `of` holds.
template <class Of>
bool names_any(const ResolvedPolicy& policy, Of of) {
    return std::any_of(std::begin(kQuantityTable), std::end(kQuantityTable),
                       [&](const QuantityRow& row) { return policy.names(row.quantity) && of(row); });
}
/// Returns whether a formula of the policy needs stored keys, or stored values.
inline bool reads_keys(const ResolvedPolicy& policy) {
    return names_any(policy, [](const QuantityRow& row) { return row.reads_keys; });
}
inline bool reads_values(const ResolvedPolicy& policy) {
    return names_any(policy, [](const QuantityRow& row) { return row.reads_values; });
}
/// Returns whether a formula needs the scores of each query head beside the pooled ones.
inline bool reads_head_scores(const ResolvedPolicy& policy) {
    return names_any(policy, [](const QuantityRow& row) { return row.reads_scores; });
}

/// Returns whether tokens are ranked for the record in a row that evicts none: where that is quick, and
/// the rows that `win` is the mean of are known.
inline bool ranks_for_record(const ResolvedPolicy& policy, bool knows_rows) {
    return !policy.ranks_late() && (knows_rows || !policy.names(Quantity::win));
}

/// Returns a lane's policy with other formulas of selections.
ResolvedPolicy with_formulas(ResolvedPolicy policy, const RankFormulas& by);
/// Returns what is given as `win` of these tokens; empty: nothing is, or the lane keeps rows of its own.
std::vector<float> given_win(const ResolvedPolicy& of_lane, const RankFormulas& by,
                             std::span<const std::int32_t> positions);

/// What a KV head of the unit stores, in text order, rounded as it is stored.
struct ChoiceHead {
    std::vector<std::int32_t> positions{};
    std::vector<float> keys{};                 ///< [n, head_dim]; empty where no formula reads keys
    std::vector<float> values{};               ///< the same
    std::vector<std::vector<float>> scores{};  ///< [n] of each query head, where a formula reads them
    /// Where lengths and reach are kept with the tokens; empty: they are computed.
    std::vector<float> key_lengths{}, value_lengths{}, value_reach{};
};

/// What the formulas see of a unit, beside its pooled scores.
struct ChoiceUnit {
    const KvLayout& layout;
    Unit unit;
    const ResolvedPolicy& policy;  ///< the unit's
    int row = 0;
    int head_dim = 0;
    const FutureTable* future = nullptr;
    std::span<const ChoiceHead> heads{};        ///< of the unit's KV heads
    std::span<const std::int32_t> positions{};  ///< the union of what they store, ascending
    /// Of them: means over the newest rows, pooled as scores are; empty: no rows are known, and win is NaN.
    std::span<const float> win{};
    const RepeatTable* repeats = nullptr;
    const Model* model = nullptr;  ///< of `wvnorm`; null: it is NaN
    /// Of the query heads that read the unit's KV heads, in their order; empty: nothing is known of queries.
    std::span<const QueryMoments> queries{};
};

/// Replaces the pooled scores by what the selection ranks, and adds the protected tokens to `pinned`
/// (positions, ascending). A quantity of a token is pooled over the unit's KV heads that store it. Returns
/// what orders tokens of equal rank: the same without smoothing; empty where nothing is smoothed.
std::vector<float> choose_on_host(const ChoiceUnit& of, std::span<float> pooled,
                                  std::vector<std::int32_t>& pinned);

/// Returns what the lane's calibration says of the query heads that read a unit's KV heads.
std::vector<QueryMoments> calibrated_queries(const KvLayout& layout, const Unit& unit,
                                             const ResolvedPolicy& policy);
/// Returns what is known of the query heads that read a unit's KV heads, as ChoiceUnit takes it: none unless
/// the policy ranks by queries. query_sinks: as add_query_sinks() makes them; of_layer(l): what was taken of
/// a layer's queries, [query_sinks, n_heads].
template <class OfLayer>
std::vector<QueryMoments> queries_of_unit(const KvLayout& layout, const Unit& unit,
                                          const ResolvedPolicy& policy, std::span<const int> query_sinks,
                                          OfLayer of_layer) {
    if (policy.calibration) return calibrated_queries(layout, unit, policy);
    std::vector<QueryMoments> queries;
    const auto known = std::find(query_sinks.begin(), query_sinks.end(), policy.sinks);
    if (!policy.names_queries() || known == query_sinks.end()) return queries;
    const std::size_t first = to_index(known - query_sinks.begin()) * to_index(layout.n_heads());
    for (int g = unit.first; g < unit.last; g += unit.step)
        for (const HeadRef& reader : layout.kv_head(g).readers)
            queries.push_back(of_layer(reader.layer)[first + to_index(reader.head)]);
    return queries;
}

/// Returns whether tokens of a unit may leave after a prompt of n tokens. Of heads that share budgets, those
/// that alone would keep all may too.
inline bool may_leave_prompt(const ResolvedPolicy& of_lane, const ResolvedPolicy& of_unit, int n) {
    const auto is_due = [n](const ResolvedPolicy& one) { return must_select(one, n, n - 1); };
    return of_lane.alloc == Alloc::uniform ? is_due(of_unit) : of_lane.any(is_due);
}
/// Returns whether a unit of a prompt is ranked by formulas: where tokens may leave after it, and where
/// scores are wanted.
inline bool ranks_prompt(const ResolvedPolicy& of_unit, bool may_leave, bool needs_scores) {
    return of_unit.has_formula() && (may_leave || (needs_scores && !of_unit.ranks_late()));
}

inline std::vector<std::int32_t> prompt_positions(int n) {
    std::vector<std::int32_t> positions(to_index(n));
    for (std::int32_t p = 0; p < n; ++p) positions[to_index(p)] = p;
    return positions;
}

/// Returns whether the policy chooses over all layers of a prompt of n tokens at once.
inline bool chooses_over_layers(const ResolvedPolicy& policy, int n) {
    return (spans_layers(policy.scope) || policy.alloc == Alloc::global) &&
           policy.any([n](const ResolvedPolicy& one) { return one.exceeded(n, n - 1); });
}

/// Puts evictions of units that are no neighbours in the order of KV heads, in which records have them.
void sort_by_kv_head(std::vector<Eviction>& evictions);

/// What a unit of a lane ranks, and where its number of tokens that stay goes.
struct SharedChoice {
    std::size_t lane;
    Unit unit;
    std::span<const std::int32_t> positions;  ///< of its tokens, ascending
    std::span<const float> score, ties;
    std::span<const std::int32_t> guarded;
    int* stored;
};

/// Sets how many tokens each unit keeps in the lanes that share budgets: the heads of a layer with each
/// other, or all; all n where nothing is due. policy_of(lane).
void share_prompt_budgets(const KvLayout& layout, int n,
                          const std::function<const ResolvedPolicy&(std::size_t lane)>& policy_of,
                          std::span<const SharedChoice> choices);

/// Returns which KV heads of a lane that shares budgets at rows must lose tokens after a row: all that share,
/// where they store as many as they may together. counts: of the KV heads.
std::vector<bool> heads_due(const KvLayout& layout, const ResolvedPolicy& policy, std::span<const int> counts,
                            int row);
/// Sets how many tokens the units keep in a lane that shares budgets at rows: those of the heads that are
/// due. Each head's share is of what it stores; what it cannot take goes to the others.
void share_row_budgets(const KvLayout& layout, const ResolvedPolicy& policy,
                       std::span<const SharedChoice> choices);
/// Returns a head's policy with the number of tokens that it keeps.
ResolvedPolicy with_stored(const ResolvedPolicy& policy, int stored);

/// Chooses the victims of a prompt's unit that keeps `stored` tokens; returns the threshold.
float prompt_victims(const ResolvedPolicy& policy, int n, int stored, std::span<const float> score,
                     std::span<const float> ties, std::span<const std::int32_t> guarded,
                     std::vector<int>& victims);

/// Returns `win` of n tokens as R-KV's released code has it: in each of the newest rows the largest logit of
/// the query heads, softmax over the tokens before the `newest` that the row sees, then the mean over rows.
/// logit_of(reader, r, i): of the r-th of n_rows rows, the oldest first, on the i-th token. positions: of the
/// tokens, ascending; row: the last one. CUDA twin: WinOfLogits, with the same bits.
std::vector<float> win_of_logits(std::span<const std::int32_t> positions, int newest, int row, int n_rows,
                                 int n_readers,
                                 const std::function<float(int reader, int r, std::size_t i)>& logit_of);

/// Pools n values of each query head over the readers of a unit's KV heads. Under scope column the readers of
/// each KV head are pooled, then the mean over the KV heads is taken. values_of(reader): [n]
template <class ValuesOf>
std::vector<float> pool_unit_of_prompt(const KvLayout& layout, const Unit& unit, const ResolvedPolicy& policy,
                                       int n, ValuesOf values_of) {
    const bool by_column = policy.scope == Scope::column;
    std::vector<float> pooled(to_index(n)), of_head(by_column ? pooled.size() : 0);
    int n_readers = 0;
    for (int g = unit.first; g < unit.last; g += unit.step) {
        if (by_column) n_readers = 0;
        float* to = by_column ? of_head.data() : pooled.data();
        for (const HeadRef& reader : layout.kv_head(g).readers)
            pool_more(policy.pool, n_readers++ == 0, values_of(reader), n, to);
        if (!by_column) continue;
        finish_pool(policy.pool, n_readers, n, to);
        pool_more(Pool::mean, g == unit.first, to, n, pooled.data());
    }
    finish_pool(by_column ? Pool::mean : policy.pool, by_column ? unit.n_heads() : n_readers, n,
                pooled.data());
    return pooled;
}

/// Returns `win` of a prompt's n tokens after its last row, pooled over a unit's readers. row_of(reader,
/// row): attention of a row [n].
template <class RowOf>
std::vector<float> pool_last_rows(const KvLayout& layout, const Unit& unit, const ResolvedPolicy& policy,
                                  int n, RowOf row_of) {
    const std::vector<WinRows> rows = win_rows(policy, n - 1);
    const std::vector<std::int32_t> positions = prompt_positions(n);
    std::vector<float> means;
    return pool_unit_of_prompt(layout, unit, policy, n, [&](const HeadRef& reader) {
        means = means_of_rows(rows, positions.data(), n, [&](int row) { return row_of(reader, row); });
        return static_cast<const float*>(means.data());
    });
}

}  // namespace keyhole
