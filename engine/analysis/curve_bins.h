/// Reduces a curve that has more values than its plot has room for: means of neighbouring values. Pure
/// functions; any thread.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace keyhole {

/// Returns how many neighbours a mean takes so that at most `most_bins` are left: a power of two, so that a
/// growing curve seldom changes its bins. Needs most_bins > 0.
std::size_t values_a_bin(std::size_t n_values, std::size_t most_bins);

/// Returns the mean of each `n` neighbours; NaN where all are NaN. logarithmic: geometric means, of values
/// that count as at least `lowest`. Needs n > 0, and lowest > 0 where logarithmic.
std::vector<float> means_of_bins(std::span<const float> values, std::size_t n, bool logarithmic,
                                 double lowest);

}  // namespace keyhole
