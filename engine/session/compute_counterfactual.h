/// Computes what a lane would say if it had never evicted certain tokens, in a temporary copy that repeats
/// the lane's other evictions. Used on the session's thread.
#pragma once

#include "engine/run/counterfactual.h"

namespace keyhole {

class LaneRunner;
class ProgressPart;
struct SessionState;

/// Answers for a session in this state. Throws what Session::counterfactual() throws, and
/// Error(cancelled).
Counterfactual compute_counterfactual(const LaneRunner& runner, const SessionState& state,
                                      CounterfactualRequest asked, const ProgressPart& progress);

}  // namespace keyhole
