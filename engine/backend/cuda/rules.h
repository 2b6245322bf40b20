/// Translates a policy at one row into numbers for kernels. Pure; any thread. Knows no cache.
#pragma once

#include "engine/backend/cuda/kernels/lane.h"
#include "engine/backend/cuda/kernels/store.h"
#include "engine/policy/params.h"

#include <vector>

namespace keyhole::cuda {

/// Returns whether the host selects after rows: what the policy ranks by, or how it chooses, has no kernel.
bool has_no_kernel(const ResolvedPolicy& policy);

/// Returns which rows a store keeps of each token after a row; `at` is not set.
KeptSpans kept_spans(const ResolvedPolicy& policy, int row);

/// Returns the different formulas of rows of the policy and its variants; RowRule::score counts them.
std::vector<FormulaRef> score_formulas(const ResolvedPolicy& policy);

/// Writes the rules of the policy itself and of its variants, in their order: what a step uploads for a lane.
void row_rules(const ResolvedPolicy& policy, int row, bool needs_scores, std::vector<RowRule>& out);

}  // namespace keyhole::cuda
