/// A run without a model: random causal attention, scores that accumulate, and evictions of the lowest score,
/// recorded as the engine would. For tests of what reads records.
#pragma once

#include "engine/trace/recorder.h"

#include <vector>

namespace keyhole::testing {

struct SyntheticSpec {
    int n_layers = 4;
    int n_heads = 4;
    int n_kv_heads = 4;  ///< in a layer
    int n_prompt = 40;
    int n_decoded = 30;
    std::vector<int> budgets = {0, 16, 16};  ///< a lane each; 0: full
    std::uint64_t run_id = 1;
    /// Attention if nothing was evicted; null: synthetic_attention.
    float (*attention)(int row, int layer, int head, int position) = nullptr;
};

StepList synthetic_run(const SyntheticSpec& spec);

/// The value that the run holds, before rounding to fp16: attention of a head at a row if nothing was evicted.
float synthetic_attention(int row, int layer, int head, int position);

}  // namespace keyhole::testing
