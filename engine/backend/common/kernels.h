/// The inner loops of the CPU backend, vectorised with Highway and chosen for the processor at run time. No
/// state; any thread. Every output is summed in one fixed order, whatever the batch and the number of
/// threads. CUDA twins: backend/cuda/kernels.
#pragma once

#include "engine/model/model.h"

#include <cstdint>
#include <span>
#include <string>

namespace keyhole {

///     y[b * y_stride + r] = sum_c w[r, c] * x[b * x_stride + c]
/// for rows r in [first_row, last_row) and columns b in [0, n_batch). Weights are widened in registers.
/// x [n_batch, cols] and y [n_batch, rows] are float.
void multiply_rows(const Weight& w, std::int64_t first_row, std::int64_t last_row, const float* x,
                   std::int64_t x_stride, int n_batch, float* y, std::int64_t y_stride);

/// Writes rows [first_row, last_row) of w as float to out [rows, cols].
void widen_rows(const Weight& w, std::int64_t first_row, std::int64_t last_row, float* out);

/// Writes columns [first, first + n) of these rows to out [rows, n]; with a type of blocks, whole ones.
void widen_columns(const Weight& w, std::int64_t first_row, std::int64_t last_row, std::int64_t first,
                   std::int64_t n, float* out);

/// p = softmax(x); x and p may be the same; n >= 1. -inf gives 0; if all are -inf, all results are 0. `soon`
/// lists arrays ([n], 4 bytes an element) to prefetch into the processor's cache, so that their reads overlap
/// with the exponentials.
void softmax(const float* x, int n, float* p, std::span<const void* const> soon = {});

/// Gives a learned sink its part of a row's attention: p is softmax(x) over n tokens and becomes their part
/// of the softmax over the tokens and the sink. Returns the sink's part.
float share_with_sink(const float* x, int n, float sink, float* p);

/// x <- cap tanh(x / cap)
void soft_cap(float* x, float cap, std::int64_t n);

/// score[s] <- alpha * score[s] + weight * p[s], explicit multiply and add (folded_score in policy/math.h).
void fold_scores(const float* p, int n, float alpha, float weight, float* score);

/// Returns the slot with the lowest score among those whose position lies within [first, last]; among equal
/// scores, the one with the lowest position. NaN counts as -inf. score and position are [n] by slot; at least
/// one position must lie within. [0, INT32_MAX] means all slots.
int lowest_slot(const float* score, const std::int32_t* position, int n, std::int32_t first,
                std::int32_t last);

/// Returns the index of the first element of `values` equal to `value`; n when there is none.
int index_of(const std::int32_t* values, int n, std::int32_t value);

/// out[i] = (logit[i] + gain * noise[i]) / tau (tempered_logit in policy/math.h); noise may be null.
void temper_logits(const float* logit, const float* noise, int n, float gain, float tau, float* out);

/// out = x / sqrt(mean(x^2) + eps) * gain       RMSNorm
void rms_norm(std::span<const float> x, const float* gain, float eps, float* out);

/// out = (x - mean(x)) / sqrt(variance(x) + eps) * gain + bias       LayerNorm; bias may be null
void layer_norm(std::span<const float> x, const float* gain, const float* bias, float eps, float* out);

/// x <- act(x), or act(x) * up where up is not null:
///     silu        x / (1 + exp(-x))
///     gelu        x * Phi(x); erfc as Abramowitz and Stegun 7.1.26, off by at most 1.5e-7
///     gelu_tanh   x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) / 2
///     relu        max(x, 0)
///     clamped_swiglu   needs up: min(x, 7) sigmoid(1.702 min(x, 7)) (clamp(up, -7, 7) + 1)
void activate(Activation kind, float* x, const float* up, std::int64_t n);

/// x <- min(max(x, -limit), limit)
void clip(float* x, float limit, std::int64_t n);

/// x <- x + y
void add_to(float* x, const float* y, std::int64_t n);

/// to <- to & from
void and_bytes(const std::uint8_t* from, std::int64_t n, std::uint8_t* to);

/// y <- y + scale * x
void add_scaled(const float* x, float scale, std::int64_t n, float* y);

/// logit[s] += slope * (position[s] - steps_back[s] - place)       ALiBi
/// `place` is the query's place; steps_back may be null.
void add_distances(const std::int32_t* position, const std::int32_t* steps_back, int n, float slope,
                   int place, float* logit);

/// Rotates the first rotary.dims dimensions of one head in place. cosine and sine [dims / 2] give the angles.
/// It reads only dims and interleaved of rotary.
void rotate_head(float* x, const float* cosine, const float* sine, const Rotary& rotary);

/// out[s] = k[s] rotated back by steps[s] positions. k, out [n, head_dim], which may be the same; turns
/// [> max steps, rotary.dims]: row i holds the cosines, then the sines, of the angles of i positions.
void turn_keys(const float* k, const std::int32_t* steps, int n, int head_dim, const Rotary& rotary,
               const float* turns, float* out);

/// Returns the name of the instruction set in use, such as "AVX3".
std::string simd_name();

}  // namespace keyhole
