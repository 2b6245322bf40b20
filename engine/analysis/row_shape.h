/// How unevenly an attention row is spread: entries next to nothing, and the few that hold the mass. Pure functions; any thread; knows
/// nothing of the rest.
#pragma once

#include <span>

namespace keyhole {

/// Share of the visible entries a_j with a_j <= threshold * max_j a_j (Keyformer, figures 3a and 11); threshold 0: exactly zero, which
/// depends on the number type. row: probabilities of all positions up to the row's own, not empty.
double sparse_share(std::span<const float> row, double threshold);

/// Adds to out[i], i = 0 .. n - 1, the mass that the i / (n - 1) largest part of the entries holds (Keyformer, figure 3b): the row sorted
/// down and summed up, straight between entries; as a share of the row's sum. A row without mass adds nothing.
void add_mass_curve(std::span<const float> row, std::span<double> out);

}  // namespace keyhole
