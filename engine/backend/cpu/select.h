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
};

/// Pools the policy's own accumulator over all query heads that read the KV heads [first, last): mean, sum or
/// max. A head that no longer stores a token adds nothing to it.
void pool_unit(const CpuKvCache& cache, const KvLayout& layout, int first, int last, UnitScores& out);

/// Keeps the first `sinks` positions, the newest `recent` tokens and the best of the rest, `budget` in all;
/// among equal scores the older position leaves; NaN ranks lowest. positions ascending. victims: indices,
/// ascending; empty when all fit. Returns the lowest score that stayed among the competing tokens, NaN where
/// nothing competed.
float select_victims(std::span<const std::int32_t> positions, std::span<const float> score,
                     const ResolvedPolicy& policy, std::vector<int>& victims);

/// Index ranges of KV heads that are selected together under a scope.
struct Unit {
    int first = 0;
    int last = 0;
};
std::vector<Unit> units_of(const KvLayout& layout, Scope scope);

}  // namespace keyhole::cpu
