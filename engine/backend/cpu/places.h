/// Where stored keys stand for the model when it is not where they stood in the text: positions=cache and positions=compressed.
/// Keys are stored rotated at their original position; rotations compose, so a key is turned back by the difference when it is
/// used, and the query is rotated at the place of the newest. positions=original uses none of this. Any thread.
#pragma once

#include "engine/backend/cpu/cache.h"

#include <span>
#include <vector>

namespace keyhole::cpu {

/// By slot, how many positions the place of a token lies before its original one, >= 0. Places:
///     cache        the index among what the KV head stores                     StreamingLLM, released code
///     compressed   the running sum of compressed_gap(), the first gap from 0   TOVA, extrapolation
/// Returns the place of the newest token. steps [cache.count(g)].
int steps_back(const CpuKvCache& cache, int g, Positions positions, std::span<std::int32_t> steps);

/// Cosines and sines of turns by whole positions, made once.
class TurnTable {
  public:
    /// inverse_frequency [head_dim / 2]
    explicit TurnTable(std::span<const double> inverse_frequency)
        : inverse_frequency_(inverse_frequency.begin(), inverse_frequency.end()) {}

    /// Makes the rows 0..last. Not while others read.
    void grow(int last);
    /// [head_dim] of a row: the cosines of its angles, then the sines.
    const float* row(int steps) const {
        return rows_.data() + static_cast<std::size_t>(steps) * 2 * inverse_frequency_.size();
    }

  private:
    std::vector<double> inverse_frequency_;
    std::vector<float> rows_;
};

}  // namespace keyhole::cpu
