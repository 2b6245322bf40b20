/// Lanes that have failed, in words. Any thread.
#pragma once

#include "engine/trace/record.h"

#include <string>
#include <vector>

namespace keyhole {

/// Returns a line for each lane that has failed: which, and why.
std::vector<std::string> lane_failures(const StepTrace& step);

/// Throws Error(unsupported) with the first of these lines. For results that need all lanes.
void throw_if_failed(const StepTrace& step);

}  // namespace keyhole
