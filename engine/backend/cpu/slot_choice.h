/// Ranks the tokens of a unit by slot, without bringing them into text order first: for formulas that look
/// at one token at a time. Same bits as choose_on_host(). Any thread.
#pragma once

#include "engine/backend/cpu/cache.h"
#include "engine/policy/selection.h"

#include <vector>

namespace keyhole::cpu {

/// Returns whether the policy's formulas can be evaluated by slot: no function over tokens, nothing that
/// protects, and quantities that the cache has by slot alone.
bool ranks_by_slot(const CpuKvCache& cache, const Unit& unit, const ResolvedPolicy& policy);

/// Writes what `choose` ranks of the tokens of a unit whose KV heads hold the same slots, at least
/// [count(unit.first)]. pooled: their scores by slot; null where the formula does not name s.
void rank_slots(const CpuKvCache& cache, const Unit& unit, const ResolvedPolicy& policy, int row,
                const float* pooled, std::vector<float>& ranked);

}  // namespace keyhole::cpu
