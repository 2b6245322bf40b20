/// A run that reads a question and its known answer token by token beside full attention.
#pragma once

#include "engine/eval/evaluate.h"
#include "engine/run/run_spec.h"

#include <functional>
#include <memory>
#include <span>

namespace keyhole {

/// Returns the run: every lane has a shadow, rows are requested with attention and shadow, and the forced
/// tokens are what is asked, then the answer.
RunSpec measured_run(const Question& question, std::span<const LaneSpec> lanes);

/// Decodes it into the sink. at_read: called once with each lane and all that it evicted from the prompt and
/// the first n_read forced tokens.
void decode_measured(const std::shared_ptr<const Model>& model, Backend& backend, const RunSpec& spec,
                     RowSink& sink, std::size_t n_read,
                     const std::function<void(std::size_t lane, std::span<const Eviction> gone)>& at_read);

}  // namespace keyhole
