/// The text of a lane with other values for some keys, for texts that are not parsed yet. Any thread; knows
/// lane specs.
#pragma once

#include "engine/policy/lane_spec.h"

#include <string>
#include <string_view>

namespace keyhole {

/// Returns the lane's spec, without its name, in which `items` stand for the lane's own values of the same
/// keys: as after the colon of a spec, such as `budget=64,alpha@L0=0.5`. It reads no value, so that an item
/// may hold the `{a}` of a search. Throws Error(wrong_use) for parentheses that do not match.
std::string changed_spec_text(const LaneSpec& spec, std::string_view items);

}  // namespace keyhole
