/// A run that reads a question and its known answer token by token beside full attention.
#pragma once

#include "engine/eval/evaluate.h"
#include "engine/run/run_spec.h"

#include <span>

namespace keyhole {

/// Returns the run: every lane has a shadow, rows are requested with attention and shadow, and the forced
/// tokens are what is asked, then the answer.
RunSpec measured_run(const Question& question, std::span<const LaneSpec> lanes);

}  // namespace keyhole
