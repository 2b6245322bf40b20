/// Pools the scores of a unit and evicts its victims from a cache in main memory. Any thread. CUDA twin:
/// backend/cuda/kernels/select.h.
#pragma once

#include "engine/backend/cpu/cache.h"
#include "engine/policy/selection.h"

#include <span>
#include <vector>

namespace keyhole::cpu {

/// The union of the positions that a unit's KV heads store, ascending, with the pooled score of each.
struct UnitScores {
    std::vector<std::int32_t> positions;
    std::vector<float> pooled;
    std::vector<float> ranked;  ///< by slot: what a formula makes of the pooled scores
    std::vector<float> ties;    ///< what orders tokens of equal rank; empty: their age alone
    std::vector<std::int32_t> scratch;
    std::vector<std::int32_t> pinned;
};

/// Pools each head's own accumulator over all query heads that read the unit's KV heads: mean, sum or max. A
/// head that no longer stores a token adds nothing for it.
void pool_unit(const CpuKvCache& cache, const Unit& unit, UnitScores& out);

/// See KvCache::rank().
RankedUnit rank_by(const CpuKvCache& cache, int kv_head, const RankFormulas& by, int row);

/// When a unit may evict: after the rows that its policy names, or after any row.
enum class Due { by_row, now };

/// Chooses the victims of a unit, removes them and appends them to `evictions`. Writes pooled scores and
/// thresholds to `values` when it is not null (offsets filled, scores sized).
void evict_unit(CpuKvCache& cache, const Unit& unit, int row, Due due, UnitScores& scores,
                std::vector<int>& victims, RowValues* values, std::vector<Eviction>& evictions);

/// Selects for all KV heads of a cache whose heads share budgets at rows (ResolvedPolicy::shares_at_rows).
void evict_sharing(CpuKvCache& cache, int row, Due due, RowValues* values, std::vector<Eviction>& evictions);

/// Calls evict_unit() for every unit of the cache, or evict_sharing(): everything that follows once a row is
/// scored. Returns the evictions.
std::vector<Eviction> select_row(CpuKvCache& cache, int row, Due due = Due::by_row);

}  // namespace keyhole::cpu
