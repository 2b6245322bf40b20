/// The answers of a run that nobody watches: what its lanes say by themselves after the prompt. Used by one
/// thread, that of a command.
#pragma once

#include "engine/backend/backend.h"
#include "engine/run/answer.h"
#include "engine/run/progress_part.h"
#include "engine/run/run_spec.h"

#include <memory>
#include <vector>

namespace keyhole {

/// Runs the spec as replay() does, up to `last_row` if it has commands and else to the end of the prompt, and
/// returns the lanes' own answers, in the order of the lanes in its last record: see OwnAnswers. Commands
/// after that record change none. Records nothing.
/// progress: 0..1, returns false to cancel, which throws Error(cancelled).
std::vector<LaneAnswer> answers_of_run(std::shared_ptr<const Model> model, Backend& backend, RunSpec spec,
                                       int last_row, const AnswerEnd& end,
                                       const ProgressReport& progress = {});

}  // namespace keyhole
