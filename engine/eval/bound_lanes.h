/// The floor and the ceiling of lanes: `random` with several seeds and `oracle`, for every budget among them.
/// Pure functions, for any thread.
#pragma once

#include "engine/policy/lane_spec.h"

#include <span>
#include <string>
#include <vector>

namespace keyhole {

/// Seeds of `random` where nobody says how many.
inline constexpr int kBoundSeeds = 3;

/// Returns whether a lane has a floor: it has a budget, or reads a part of what it stores.
bool has_floor(const LaneSpec& lane);

/// Returns the spec of a lane's floor, with seed 1: `random` with its budget, or with as many tokens as it
/// reads, with what it protects by place, and evicting in the rows in which it does.
std::string floor_of(const LaneSpec& lane);

/// Returns the lanes to add: for every floor among the lanes n_seeds of `random` and, where the continuation
/// is known ahead, one `oracle`. None that is there already.
std::vector<LaneSpec> bound_lanes(std::span<const LaneSpec> lanes, int n_seeds, bool knows_text);

}  // namespace keyhole
