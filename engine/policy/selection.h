/// Decides which tokens a policy evicts, given their scores. Pure functions; any thread. Knows no cache: it
/// works on positions and scores.
#pragma once

#include "engine/model/kv_layout.h"
#include "engine/policy/params.h"

#include <cstdint>
#include <span>
#include <vector>

namespace keyhole {

/// The KV heads that are selected together under a scope: every step-th of [first, last).
struct Unit {
    int first = 0;
    int last = 0;
    int step = 1;
    int n_heads() const { return (last - first + step - 1) / step; }
    int head(int i) const { return first + i * step; }
};
std::vector<Unit> units_of(const KvLayout& layout, Scope scope);

/// True when a unit that stores n tokens must evict after this row: it holds too many, or the policy drops a
/// column (Gap::dropped).
bool must_select(const ResolvedPolicy& policy, int n, int row);

/// Chooses the victims of a unit. Keeps `policy.stored` tokens: the first `sinks` positions, the `newest`
/// tokens, pinned tokens and the best of the rest. The released Keyformer code also evicts the position
/// row - recent + 1. Among equal scores the lower `tie` is evicted, where it is given, then the older
/// position; NaN ranks lowest. Where pins leave too few competing tokens, the newest tokens are evicted, the
/// oldest of them first, then the sinks, the newest first. With `unit` above 1, blocks of the text leave
/// whole, by the means of their competing tokens, and so perhaps more than must. positions and pinned
/// (positions too) are ascending. victims receives indices, ascending, and is empty when all tokens fit.
/// Returns the lowest score among the competing tokens that stayed, NaN where nothing competed.
float select_victims(std::span<const std::int32_t> positions, std::span<const float> score,
                     std::span<const std::int32_t> pinned, const ResolvedPolicy& policy, int row,
                     std::vector<int>& victims, std::span<const float> tie = {});

}  // namespace keyhole
