/// The checks of the doctor: each looks at one lane and one row. They only read the history.
#pragma once

#include "engine/analysis/checked_lane.h"
#include "engine/analysis/doctor.h"

namespace keyhole {

Finding check_budget(const CheckedLane& x);
Finding check_window(const CheckedLane& x);
Finding check_shares(const CheckedLane& x);
Finding check_sliding_layers(const CheckedLane& x);
Finding check_counts(const CheckedLane& x);
Finding check_sums(const CheckedLane& x);
Finding check_equals_full(const CheckedLane& x);
Finding check_lost_mass(const CheckedLane& x);
Finding check_ranks(const CheckedLane& x);

}  // namespace keyhole
