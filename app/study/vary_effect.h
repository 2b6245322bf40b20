/// Whether the keys of a grid change its lanes. Pure function, for any thread; knows policies.
#pragma once

#include "engine/eval/sweep_grid.h"

#include <span>
#include <string>
#include <vector>

namespace keyhole {

/// Returns a line for each key that changes nothing in some of the first n_lanes lanes, with the reason. A
/// full cache, which appears once, does not count. labels: of the lanes. Throws Error(wrong_use) for a key
/// that changes none of them.
std::vector<std::string> check_vary_effects(std::span<const GridCell> cells, std::span<const Vary> varies,
                                            std::span<const std::string> labels, std::size_t n_lanes);

}  // namespace keyhole
