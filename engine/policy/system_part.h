/// Lanes that leave it to the run where the system part of a chat ends: `protect=system` and `spans=fair`.
/// Pure functions; any thread.
#pragma once

#include "engine/policy/lane_spec.h"

namespace keyhole {

bool protects_system_part(const PolicyParams& policy);
/// Returns whether positions are to take the place of one of both.
bool asks_for_system_part(const PolicyParams& policy);

/// Returns the lane with positions in their place, of a system part of n tokens; unchanged if n is 0.
LaneSpec with_system_part(LaneSpec lane, int n);
/// Returns whether `put` is the lane `asked` with positions in their place, of any system part.
bool is_with_system_part(const LaneSpec& asked, const LaneSpec& put);
/// Returns whether both are equal, or the second is the first with positions in place.
inline bool are_alike(const LaneSpec& asked, const LaneSpec& put) {
    return asked == put || is_with_system_part(asked, put);
}

}  // namespace keyhole
