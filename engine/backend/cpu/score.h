/// Turns one row of attention logits into probabilities and scores. Knows the cache and its policy, no model.
/// Any thread, one query head of a cache at a time. Maths: policy/math.h. CUDA twin:
/// backend/cuda/kernels/attention.h.
///
/// To use it without a model, on logits from anywhere:
///     CpuKvCache cache(layout, 1);  cache.set_policy(policy);  cache.reserve(capacity);
///     for every row:  cache.append(g, row) for every KV head g;
///                     for every query head: write its logits by slot to scratch.logits, then score_row();
///                     select_row() of select.h, which evicts where the policy says so.
/// cache.positions(g)[slot] is the position of a slot's token.
#pragma once

#include "engine/backend/cpu/cache.h"

#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

namespace keyhole::cpu {

/// Seconds that one worker spends in each part of a row. Reads no clock unless `on`.
struct Laps {
    bool on = false;
    double attention = 0, scoring = 0, eviction = 0;

    void begin() {
        if (on) last_ = std::chrono::steady_clock::now();
    }
    /// Adds the time since begin() or the last end() to `part`.
    void end(double& part) {
        if (!on) return;
        const auto now = std::chrono::steady_clock::now();
        part += std::chrono::duration<double>(now - last_).count();
        last_ = now;
    }

  private:
    std::chrono::steady_clock::time_point last_;
};

/// A row of one query head by slot, at least [cache.count(g)]; grows and is never freed.
struct RowScratch {
    std::vector<float> logits;         ///< in: scaled q.k and position bias; out: -inf where hidden
    std::vector<float> probabilities;  ///< attention; 0 where hidden, all 0 where the row sees nothing
    std::vector<float> tempered;       ///< softmax((logit + gain * noise) / tau); only where the head tempers
    std::vector<float> with_sink;      ///< the tempered logits, where the head has a learned sink
    std::vector<float> row_noise;
    std::vector<float> by_formula;  ///< lists of a score formula
    /// 1: stored but not visible to this row; only where the policy hides any
    std::vector<std::uint8_t> hidden;

    /// By slot: 1 where the row does not read the token's page. Empty: it reads all.
    std::span<const std::uint8_t> unread;

    Laps laps;

    /// Makes room for n slots. Afterwards the caller may write logits.
    void grow(int n);
};

/// Other results of score_row().
struct ScoredRow {
    const float* noise = nullptr;  ///< by slot: noise of the tokens or of this row; null without noise
    bool hides = false;            ///< some slot is hidden
    float sink = 0;                ///< what the learned sink took of the row's attention
    const float* sink_logit = nullptr;
};

/// Masks the slots that ResolvedPolicy::hides() names and those outside the newest `window` tokens of the
/// text (0: no limit), and those of pages that the row does not read, computes the probabilities and folds
/// them into every running accumulator of the query head:
///     score <- alpha * score + weight * p
/// p is tempered in the tempered accumulators; weight is the damping in decode rows, else 1; alpha, tau and
/// gain are the head's own (ResolvedPolicy::at). A head whose own policy does not temper folds the plain
/// probabilities everywhere. A hidden slot adds 0; NaN logits make NaN scores. With a formula of `score` it
/// also computes that one, and keeps the probabilities where the cache keeps the newest rows. sink: the logit
/// of the head's learned sink, or null. It takes its part of p, tempered without noise, and has no score.
ScoredRow score_row(CpuKvCache& cache, const HeadRef& reader, int row, RowScratch& scratch, int window = 0,
                    const float* sink = nullptr);

}  // namespace keyhole::cpu
