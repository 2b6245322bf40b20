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
/// Returns the unit of a KV head.
Unit unit_of(const KvLayout& layout, Scope scope, int kv_head);

/// True when a unit that stores n tokens must evict after this row: it holds too many, or the policy drops a
/// column (Gap::dropped).
bool must_select(const ResolvedPolicy& policy, int n, int row);

/// A fair span at a selection: what a unit stores of it, and how much of that stays.
struct SpanShare {
    int first = 0, last = 0;  ///< indices into the unit's positions
    int stored = 0;           ///< tokens that it keeps
    int sinks = 0;            ///< positions below never compete
    int newest = 0;           ///< its newest tokens, which never compete
};

/// Divides what a unit stores over the policy's fair spans: stored tokens by their lengths in the text so
/// far, pinned ones inside their span's share; the first `sinks` and a share of `newest` of each stay, as its
/// own first and last tokens; where `win` is named, a part of `newest` as of the window. Tokens behind the
/// last span belong to it. One share of all without fair spans.
std::vector<SpanShare> span_shares(std::span<const std::int32_t> positions,
                                   std::span<const std::int32_t> pinned, const ResolvedPolicy& policy,
                                   int row);

/// Returns for each token of a unit whether it competes, by its place, its span and the pins alone: 0, or the
/// number of its fair span, the first one 1; 1 without fair spans.
std::vector<std::uint8_t> competing_tokens(std::span<const std::int32_t> positions,
                                           std::span<const std::int32_t> pinned, const ResolvedPolicy& policy,
                                           int row);

/// Chooses the victims of a unit. Keeps `policy.stored` tokens: the first `sinks` positions, the `newest`
/// tokens, pinned tokens and the best of the rest. The released Keyformer code also evicts the position
/// row - recent + 1. Among equal scores the lower `tie` is evicted, where it is given, then the older
/// position; NaN ranks lowest. Where pins leave too few competing tokens, the newest tokens are evicted, the
/// oldest of them first, then the sinks, the newest first. With `unit` above 1, blocks of the text leave
/// whole, by the means of their competing tokens, and so perhaps more than must. Fair spans choose each by
/// itself, as span_shares() says. positions and pinned
/// (positions too) are ascending. victims receives indices, ascending, and is empty when all tokens fit.
/// Returns the lowest score among the competing tokens that stayed, NaN where nothing competed.
float select_victims(std::span<const std::int32_t> positions, std::span<const float> score,
                     std::span<const std::int32_t> pinned, const ResolvedPolicy& policy, int row,
                     std::vector<int>& victims, std::span<const float> tie = {});

}  // namespace keyhole
