/// What queries before their rotation tell of queries to come: `expected` and `tri` of formulas. Sums in
/// double, in the order of rows; any thread. Knows no cache. Both backends rank by it on the host.
#pragma once

#include "engine/model/model.h"
#include "engine/policy/calibration.h"
#include "engine/policy/params.h"

#include <cstdint>
#include <span>
#include <vector>

namespace keyhole {

/// Returns how many first queries the policies leave out, each number once: their sinks, where they rank a
/// prompt of n tokens by queries or keep queries.
void add_query_sinks(const ResolvedPolicy& policy, int n, std::vector<int>& sinks);

/// Keys as a KV head stores them, rotated, in text order.
struct RankedKeys {
    std::span<const std::int32_t> positions;
    std::span<const float> keys;  ///< [n, head_dim]
    int head_dim = 0;
    const Rotary* rotary = nullptr;  ///< of the query's layer; null: it rotates nothing
};

/// Returns the attention to expect of a query head on each token in the `ahead` rows after `row`: Expected
/// Attention, equation (8). With the mean rotation M of these positions,
///     x = scale k.M mean + scale^2 / 2 k.(M covariance M^T) k,   softmax of x over positions from `sinks` on
/// Earlier ones have 0; NaN where no query is known.
std::vector<float> expected_attention(const RankedKeys& of, const QueryMoments& queries, int row, int ahead,
                                      int sinks, double scale);

/// Returns TriAttention's score of each token by a query head: the mean query, rotated to the places 1, 2, 4
/// to 65536 after the next token, times the key, plus each pair's length of the key times what the mean's
/// length lacks of the mean length; as deviations from the mean of the competing tokens.
inline constexpr int kTriOffsets = 17;
std::vector<float> tri_scores(const RankedKeys& of, const QueryMoments& queries, int row,
                              std::span<const std::uint8_t> competes, int n_offsets = kTriOffsets);

}  // namespace keyhole
