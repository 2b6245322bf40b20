/// Which tokens a policy evicts, given their scores. Pure functions; any thread.
#pragma once

#include "engine/model/kv_layout.h"
#include "engine/policy/params.h"

#include <cstdint>
#include <span>
#include <vector>

namespace keyhole {

/// Index ranges of KV heads that are selected together under a scope.
struct Unit {
    int first = 0;
    int last = 0;
};
std::vector<Unit> units_of(const KvLayout& layout, Scope scope);

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

}  // namespace keyhole
