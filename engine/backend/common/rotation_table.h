/// Cosines and sines by which stored keys are turned back, where a lane places them elsewhere than in the text.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace keyhole {

/// Cosines and sines of turns by whole positions, made once.
class RotationTable {
  public:
    /// inverse_frequency [head_dim / 2]
    explicit RotationTable(std::span<const double> inverse_frequency)
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

}  // namespace keyhole
