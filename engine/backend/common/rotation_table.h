/// Cosines and sines that turn stored keys back, for lanes whose positions differ from those in the text.
/// grow() needs exclusive access; afterwards any thread may read. Knows no cache.
#pragma once

#include "engine/base/index.h"

#include <cstddef>
#include <span>
#include <vector>

namespace keyhole {

/// Cosines and sines of turns by whole positions, each computed once.
class RotationTable {
  public:
    /// inverse_frequency [head_dim / 2]
    explicit RotationTable(std::span<const double> inverse_frequency)
        : inverse_frequency_(inverse_frequency.begin(), inverse_frequency.end()) {}

    /// Computes the rows 0..last that are missing. No other thread may read meanwhile.
    void grow(int last);
    /// Returns row `steps`, [head_dim]: the cosines of its angles, then the sines.
    const float* row(int steps) const {
        return rows_.data() + to_index(steps) * 2 * inverse_frequency_.size();
    }

  private:
    std::vector<double> inverse_frequency_;
    std::vector<float> rows_;
};

}  // namespace keyhole
