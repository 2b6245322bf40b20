/// What queries before their rotation tell of queries to come: `expected` and `tri` of formulas. In double;
/// any thread. Knows no cache. CUDA twin: backend/cuda/kernels/queries.h, with the same bits.
#pragma once

#include "engine/model/model.h"
#include "engine/policy/calibration.h"
#include "engine/policy/params.h"
#include "engine/policy/query_maths.h"

#include <cstdint>
#include <span>
#include <vector>

namespace keyhole {

/// Returns how many first queries the policies leave out, each number once: their sinks, where they rank a
/// prompt of n tokens by queries or keep queries.
void add_query_sinks(const ResolvedPolicy& policy, int n, std::vector<int>& sinks);

/// Returns which channels turn together. rotary: null: none.
RotatedPairs rotated_pairs(const Rotary* rotary);

/// The mean of the rotations at some offsets from a place of the text, with the rotary's magnitude.
class MeanTurn {
  public:
    /// n_tokens: of the text so far. rotary: null: nothing turns.
    MeanTurn(const Rotary* rotary, int n_tokens, std::span<const double> offsets);
    /// Returns it as turned_back() takes it, [2 * pairs].
    std::vector<double> at(double place) const;

  private:
    std::vector<double> frequencies_, mean_;
    double magnitude_ = 1;
};
std::vector<double> expected_offsets(int ahead);  ///< 0 to ahead - 1
inline constexpr int kTriOffsets = 17;
std::vector<double> tri_offsets(int n_offsets = kTriOffsets);  ///< 1, 2, 4 ...

/// Returns by how much the mean query of each pair is shorter than their mean length, with the rotary's
/// magnitude.
std::vector<double> lacking_lengths(const QueryMoments& queries, const Rotary* rotary);

/// Keys as a KV head stores them, rotated, in text order.
struct RankedKeys {
    std::span<const std::int32_t> positions;
    std::span<const float> keys;  ///< [n, head_dim]
    int head_dim = 0;
    const Rotary* rotary = nullptr;  ///< of the query's layer; null: it rotates nothing
};

/// Keys of a KV head with M^T k of each, M the mean of their rotations to some places after a row: alike for
/// all query heads that read them by one rotary.
struct TurnedKeys {
    RankedKeys of;
    std::vector<double> turned;  ///< [n, head_dim]
};
/// offsets: of the places from the next token on, such as expected_offsets() and tri_offsets().
TurnedKeys turned_keys(const RankedKeys& of, int row, std::span<const double> offsets);

/// Returns the attention to expect of a query head on each token in the rows to whose places keys are turned:
/// Expected Attention, equation (8). With the mean rotation M of these positions, u = M^T k, mean m and
/// covariance C,
///     x = scale u.m + scale^2 / 2 u.C u,   softmax of x over positions from `sinks` on
/// Earlier ones have 0; NaN where no query is known.
std::vector<float> expected_attention(const TurnedKeys& keys, const QueryMoments& queries, int sinks,
                                      double scale);

/// Returns TriAttention's score of each token by a query head: the mean query, rotated to the places 1, 2, 4
/// to 65536 after the next token, times the key, plus each pair's length of the key times what the mean's
/// length lacks of the mean length; as deviations from the mean of the competing tokens.
std::vector<float> tri_scores(const TurnedKeys& keys, const QueryMoments& queries,
                              std::span<const std::uint8_t> competes);

}  // namespace keyhole
