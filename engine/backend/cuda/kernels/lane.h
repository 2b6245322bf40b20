/// What kernels know of a lane: its slots, its running scores and the numbers of its policy at one row, all in device memory, so
/// that a captured graph stays valid while caches fill and empty. Plain structs, host and device.
///
/// Layout of a KV head's slots, so that neighbouring threads read neighbouring bytes:
///     keys    [head_dim / 8][capacity][8]    a thread a slot
///     values  [capacity][head_dim]           a thread a pack of dimensions
///
/// KV heads are numbered over the whole model, query heads too: layer * n_heads + head.
#pragma once

#include "engine/backend/cuda/kernels/number.h"
#include "engine/policy/math.h"

#include <cstdint>

namespace keyhole::cuda {

inline constexpr int kScores = 4;  ///< accumulators, in the order of the CPU's

/// One KV head of one lane.
template <class T>
struct DeviceHead {
    T* keys;
    T* values;
    std::int32_t* positions;  ///< [capacity]
    std::uint8_t* pinned;     ///< [capacity]
    std::int32_t count;       ///< stored tokens
    std::int32_t capacity;
};

/// The running scores of one query head of one lane, by slot of the KV head that it reads.
struct HeadScores {
    float* score[kScores];  ///< [capacity] each, null where it does not run
    float* noise;           ///< [capacity] drawn once a token, or null
    std::int32_t variant;   ///< which of the lane's rules
    std::int32_t unused;
};

/// ResolvedPolicy at one row, in numbers.
struct RowRule {
    std::uint64_t seed;
    // Scoring.
    float alpha, gain, tau, weight;
    std::int32_t tempers, score_dtype, noise_kind, noise_draw;
    // ResolvedPolicy::hides: the row blinks at `hidden_position` (-1: none), and a dilated window sees every (dilation + 1)-th of
    // `span` tokens back.
    std::int32_t hidden_position, dilation, span;
    // Selection.
    std::int32_t stored, newest, sinks;  ///< kept after the eviction, and what of it is protected
    std::int32_t dropped_position;       ///< leaves in any case (released Keyformer), -1: none
    std::int32_t evicts;                 ///< this row evicts when too many are stored
    std::int32_t wants_scores;           ///< pooled scores are asked for even where nothing leaves
    std::int32_t accumulator, pool;      ///< by which a unit is judged
    std::int32_t unused;
};

/// KV heads that are selected together: [first_head, last_head).
struct DeviceUnit {
    std::int32_t first_head, last_head;
    std::int32_t variant;
    std::int32_t on_host;  ///< its heads do not hold the same tokens: the host selects
};

template <class T>
struct LaneView {
    DeviceHead<T>* heads;              ///< [n_kv_heads]
    const HeadScores* scores;          ///< [n_layers * n_heads]
    const DeviceUnit* units;           ///< [n_units]
    const std::int32_t* unit_of_head;  ///< [n_kv_heads]
    const RowRule* rules;              ///< [variants]; 0: of the policy itself
    /// Where keys stand elsewhere than in the text (Positions): by slot how far back they are turned, [n_kv_heads, steps_stride], and
    /// the place of the row's token in each KV head. Null for original positions.
    const std::int32_t* steps;
    const std::int32_t* places;
    std::int32_t n_units;
    std::int32_t row;  ///< position of the token that is processed
    std::int32_t steps_stride, unused;
};

/// Query heads in the order of the KV heads that they read: those of g are readers[offset[g] .. offset[g + 1]).
struct ReaderTable {
    const std::int32_t* readers;
    const std::int32_t* offset;
};

KH_FN bool is_hidden(const RowRule& rule, int row, int position) {
    if (rule.dilation > 0) {
        const int back = row - position;
        return back % (rule.dilation + 1) != 0 || back / (rule.dilation + 1) >= rule.span;
    }
    return position == rule.hidden_position;
}

KH_FN float noise_of(const RowRule& rule, int layer, int head, int row, int position) {
    return noise_at(static_cast<NoiseKind>(rule.noise_kind), static_cast<NoiseDraw>(rule.noise_draw),
                    rule.seed, layer, head, row, position);
}

}  // namespace keyhole::cuda
