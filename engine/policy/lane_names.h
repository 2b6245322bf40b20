/// Names of lanes that are shown side by side: short ones from their settings, and those that a user gave.
/// Plain values, for any thread; knows lane specs.
#pragma once

#include "engine/policy/lane_spec.h"

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

/// Returns one name a lane: its preset, and where several lanes have the same preset, the settings in which
/// they differ: "h2o", "a2sf alpha=0.2", "a2sf alpha=0.9". Formulas that the preset does not have are always
/// named: "h2o choose=(s/age)". A lane's own name comes first. Equal lanes have equal names.
std::vector<std::string> lane_names(std::span<const LaneSpec> lanes);

/// Shortens titles of the form "1 a2sf alpha=0.1" with `cut`, which cuts at the end. Of titles that would
/// look the same then but for their number, the words go first that they have in common, and where that is
/// not enough the keys: "1 …alpha=0.1", "1 …0.1", or, of lanes of two presets, "3 tova cache".
std::vector<std::string> shortened_titles(std::span<const std::string> titles,
                                          const std::function<std::string(std::string_view)>& cut);

/// A lane as typed, with its name beside a spec that has none: for answers that are known by their spec.
struct NamedLane {
    std::string name;  ///< empty: none was given
    LaneSpec spec;
};
/// Throws as parse_lane_spec().
NamedLane parse_named_lane(std::string_view text);

}  // namespace keyhole
