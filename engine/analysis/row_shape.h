/// Measures how unevenly an attention row is spread: near-zero entries, and the few that hold most of the
/// mass. Pure functions, for any thread; knows no run.
#pragma once

#include <span>

namespace keyhole {

/// Returns the share of the visible entries a_j with a_j <= threshold * max_j a_j (Keyformer, figures 3a and
/// 11). With threshold 0 these are exact zeros, which depend on the number type. row: probabilities of all
/// positions up to the row's own, not empty.
double sparse_share(std::span<const float> row, double threshold);

/// Adds to out[i], i = 0 .. n - 1, the mass held by the largest i / (n - 1) of the entries, as a share of the
/// row's sum (Keyformer, figure 3b): the row is sorted in descending order, summed up, and interpolated
/// linearly between entries. A row without mass adds nothing.
void add_mass_curve(std::span<const float> row, std::span<double> out);

}  // namespace keyhole
