/// Short names of lanes that are shown side by side. Plain values, for any thread; knows lane specs.
#pragma once

#include "engine/policy/lane_spec.h"

#include <span>
#include <string>
#include <vector>

namespace keyhole {

/// Returns one name a lane: its preset, and where several lanes have the same preset, the settings in which
/// they differ: "h2o", "a2sf alpha=0.2", "a2sf alpha=0.9". Equal lanes have equal names.
std::vector<std::string> lane_names(std::span<const LaneSpec> lanes);

}  // namespace keyhole
