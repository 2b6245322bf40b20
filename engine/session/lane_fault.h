/// What makes a lane fail: numbers that are not finite. Used on the session's thread; several threads may
/// check different lanes.
#pragma once

#include "engine/session/lane.h"

namespace keyhole {

/// Lets a lane fail if its cache holds infinity or NaN, or if the next token has no probability. Call it once
/// the row's log_probs are computed. row: the one just processed. After a prompt processed in one pass, the
/// results of that pass stay, because it has not read the cache; a row that has read such numbers has none.
void find_fault(Lane& lane, int row);

/// Throws Error(unsupported) with the lane's settings and the reason if the lane failed.
void throw_if_failed(const Lane& lane);

}  // namespace keyhole
