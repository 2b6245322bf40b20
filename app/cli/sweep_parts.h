/// The sets of questions of a sweep: its tasks, its text, or the cells of a needle map. Main thread.
#pragma once

#include "app/cli/sweep.h"

#include <memory>
#include <vector>

namespace keyhole {

/// One set of questions of a sweep: one of several tasks, or a cell of a needle map.
struct SweepPart {
    QuestionSet set;
    int context = 0;
    int length = 0, depth = 0;
};

/// Throws Error(wrong_use) where a set does not fit the model, before any question is asked.
std::vector<SweepPart> sweep_parts(const SweepOptions& options, const std::shared_ptr<const Model>& model);
/// Throws Error(wrong_use) for options of a map without --map, and for those that do not go with it.
void check_map(const SweepOptions& options);

}  // namespace keyhole
