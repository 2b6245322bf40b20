/// Reads and writes the value of an option as it stands in a lane spec. The member's type says how. Any
/// thread; used by lane_spec.cpp.
#pragma once

#include "engine/policy/option_table.h"
#include "engine/policy/spec_text.h"

#include <string>

namespace keyhole {

/// The largest number of layers or heads in a spec.
inline constexpr int kMostSpecParts = 1'000'000;

/// Reads a value into the lane; does not check its bounds. Faults throw Error(wrong_use) at their character.
void read_option(const spec_text::Reader& reader, const LaneOption& option, spec_text::Item item,
                 LaneSpec& lane);
std::string option_text(const LaneOption& option, const LaneSpec& lane);

/// As read_option(), for the value of an override of o.field.
void read_override_value(const spec_text::Reader& reader, spec_text::Item item, Override& o);
std::string override_value_text(const Override& o);

}  // namespace keyhole
