/// Settings made from others: copies that keep every option but those that a question or a choice changes.
/// Any thread. Pure functions.
#pragma once

#include "engine/policy/lane_spec.h"

namespace keyhole {

/// Returns the lane's settings without eviction and without a shadow: it stores and computes K and V as the
/// lane does, and attends to all that it has. Needs a lane that neither hides tokens nor moves keys
/// (attends_plainly()).
LaneSpec without_eviction(LaneSpec lane);

/// Returns the names of spans, without `fair`.
FormulaText named_alone(const FormulaText& spans);

/// Returns the values of another preset. Options that no preset sets stay as they are, and so does a budget
/// in tokens, unless the preset keeps everything. Overrides go, except those of a budget that stays, and
/// spans share no budget where the preset cannot.
PolicyParams with_preset(const PolicyParams& before, Preset preset);

}  // namespace keyhole
