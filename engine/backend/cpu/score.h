/// One row of attention logits becomes probabilities and scores. Knows the cache and its policy, no model. Any thread, one
/// query head of a cache at a time. Maths: policy/math.h. CUDA twin: backend/cuda.
///
/// Without a model, on logits from anywhere:
///     CpuKvCache cache(layout, 1);  cache.set_policy(policy);  cache.reserve(capacity);
///     for every row:  cache.append(g, row) for every KV head g;
///                     for every query head: its logits by slot (token cache.positions(g)[slot]) into scratch.logits; score_row();
///                     select_row() of select.h, which evicts where the policy says so.
#pragma once

#include "engine/backend/cpu/cache.h"

#include <chrono>
#include <cstdint>
#include <vector>

namespace keyhole::cpu {

/// Seconds of one worker between the parts of a row; reads no clock unless it is on.
struct Laps {
    bool on = false;
    double attention = 0, scoring = 0, eviction = 0;

    void begin() {
        if (on) last_ = std::chrono::steady_clock::now();
    }
    /// What passed since begin() or the last end() was that part.
    void end(double& part) {
        if (!on) return;
        const auto now = std::chrono::steady_clock::now();
        part += std::chrono::duration<double>(now - last_).count();
        last_ = now;
    }

  private:
    std::chrono::steady_clock::time_point last_;
};

/// A row of one query head by slot, [cache.count(g)] and more: grown and kept.
struct RowScratch {
    std::vector<float> logits;         ///< in: scaled q.k and position bias; out: -inf where hidden
    std::vector<float> probabilities;  ///< attention; 0 where hidden, all 0 where the row sees nothing
    std::vector<float> tempered;       ///< softmax((logit + gain * noise) / tau); only where the head tempers
    std::vector<float> row_noise;
    std::vector<std::uint8_t> hidden;  ///< 1: stored, not seen by this row; only where the policy hides any

    Laps laps;

    /// Room for n slots. The caller may then write logits.
    void grow(int n);
};

/// What else the row has.
struct ScoredRow {
    const float* noise = nullptr;  ///< by slot: of the tokens or drawn for the row; null without noise
    bool hides = false;            ///< some slot is hidden
};

/// Masks what ResolvedPolicy::hides() names and what is not among the newest `window` tokens of the text (0: no limit), makes the probabilities and folds them into every running accumulator of the query
/// head:
///     score <- alpha * score + weight * p        p: tempered in the tempered accumulators; weight: damping in decode rows, else 1
/// with the head's own alpha, tau and gain (ResolvedPolicy::at). A head whose own policy does not temper folds the plain
/// probabilities everywhere. A hidden slot's contribution is 0; NaN logits make NaN scores.
ScoredRow score_row(CpuKvCache& cache, const HeadRef& reader, int row, RowScratch& scratch, int window = 0);

}  // namespace keyhole::cpu
