/// Choosing victims: pooling scores over the query heads of a unit, and the rule that keeps the best. Pure;
/// any thread. CUDA twin: backend/cuda/select.cu.
#pragma once

#include "engine/backend/cpu/cache.h"

#include <span>
#include <vector>

namespace keyhole::cpu {

/// The union of what a unit's KV heads store, ascending, with the score that it is judged by.
struct UnitScores {
    std::vector<std::int32_t> positions;
    std::vector<float> pooled;
    std::vector<std::int32_t> scratch;
    std::vector<std::int32_t> pinned;
};

/// Pools each head's own accumulator over all query heads that read the KV heads [first, last): mean, sum or
/// max. A head that no longer stores a token adds nothing to it.
void pool_unit(const CpuKvCache& cache, int first, int last, UnitScores& out);

/// A unit that stores n tokens has to choose after this row: it holds too many, or a column dies.
bool must_select(const ResolvedPolicy& policy, int n, int row);

/// Keeps the first `sinks` positions, the `newest` tokens, what is pinned and the best of the rest, `stored` in all; the
/// released Keyformer besides loses the position row - recent + 1. Among equal scores the older position leaves; NaN ranks
/// lowest. Where pins leave too few that compete, the newest tokens yield, the oldest of them first, then the sinks, the
/// newest first. positions, pinned (positions too) ascending. victims: indices, ascending; empty when all fit. Returns the
/// lowest score that stayed among the competing tokens, NaN where nothing competed.
float select_victims(std::span<const std::int32_t> positions, std::span<const float> score,
                     std::span<const std::int32_t> pinned, const ResolvedPolicy& policy, int row,
                     std::vector<int>& victims);

/// Index ranges of KV heads that are selected together under a scope.
struct Unit {
    int first = 0;
    int last = 0;
};
std::vector<Unit> units_of(const KvLayout& layout, Scope scope);

/// When a unit may evict.
enum class Due { by_row, now };

/// Chooses the victims of a unit, removes them and appends them to `evictions`; writes pooled scores and
/// thresholds into `values` when it is not null (offsets filled, scores sized). Due::by_row evicts after the rows that the
/// policy names, Due::now after any.
void evict_unit(CpuKvCache& cache, const Unit& unit, int row, Due due, UnitScores& scores,
                std::vector<int>& victims, RowValues* values, std::vector<Eviction>& evictions);

/// evict_unit() of every unit of the cache: all that follows once a row is scored.
std::vector<Eviction> select_row(CpuKvCache& cache, int row, Due due = Due::by_row);

}  // namespace keyhole::cpu
