/// A run without a model: random causal attention, accumulating scores, and evictions of the lowest score,
/// recorded as the engine would. For tests of record readers; no threads.
#pragma once

#include "engine/trace/recorder.h"

#include <string>
#include <vector>

namespace keyhole::testing {

struct SyntheticSpec {
    int n_layers = 4;
    int n_heads = 4;
    int n_kv_heads = 4;  ///< per layer
    int n_prompt = 40;
    int n_decoded = 30;
    std::vector<int> budgets = {0, 16, 16};  ///< one per lane; 0: full
    std::uint64_t run_id = 1;
    /// Attention as if nothing was evicted; null: synthetic_attention.
    float (*attention)(int row, int layer, int head, int position) = nullptr;
    std::string model_path = "synthetic";
};

StepList synthetic_run(const SyntheticSpec& spec);

/// Returns a head's attention in a row as if nothing was evicted: the recorded value before rounding to fp16.
float synthetic_attention(int row, int layer, int head, int position);

}  // namespace keyhole::testing
