/// The inner loops of the CPU backend, vectorised with Highway and chosen for the processor at run time. No
/// state; any thread. Every output is summed in one fixed order, whatever the batch and the number of
/// threads. Twins: backend/cuda.
#pragma once

#include "engine/model/model.h"

#include <cstdint>
#include <span>
#include <string>

namespace keyhole {

/// y[b * y_stride + r] = sum_c w[r, c] * x[b * x_stride + c]   for rows r in [first_row, last_row), columns b
/// in [0, n_batch). Weights are widened in registers. x [n_batch, cols], y [n_batch, rows], both float.
void multiply_rows(const Weight& w, std::int64_t first_row, std::int64_t last_row, const float* x,
                   std::int64_t x_stride, int n_batch, float* y, std::int64_t y_stride);

/// Rows [first_row, last_row) of w as float into out [rows, cols].
void widen_rows(const Weight& w, std::int64_t first_row, std::int64_t last_row, float* out);

/// out[s] = scale * sum_d q[d] * k[s, d]      q [head_dim], k [n, head_dim], out [n]
void dot_keys(const float* q, const float* k, int n, int head_dim, float scale, float* out);

/// p = softmax(x); x and p may be the same; n >= 1. -inf gives 0, nothing but -inf gives nothing but 0. Arrays of `soon`, [n] of 4 bytes, are
/// fetched into the cache meanwhile: their reads hide behind the exponentials.
void softmax(const float* x, int n, float* p, std::span<const void* const> soon = {});

/// out[d] = sum_s p[s] * v[s, d]      v [n, head_dim]
void weighted_sum(const float* p, const float* v, int n, int head_dim, float* out);

/// score[s] <- alpha * score[s] + weight * p[s], explicit multiply and add (folded_score in policy/math.h).
void fold_scores(const float* p, int n, float alpha, float weight, float* score);

/// The slot, of those whose position lies within [first, last], with the lowest score; among equals the one with the lowest position.
/// NaN counts as -inf. score and position [n] by slot; some position lies within. [0, INT32_MAX]: all.
int lowest_slot(const float* score, const std::int32_t* position, int n, std::int32_t first,
                std::int32_t last);

/// Index of the first of `values` that is `value`; n when none is.
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
void activate(Activation kind, float* x, const float* up, std::int64_t n);

/// x <- x, at least -limit and at most limit
void clip(float* x, float limit, std::int64_t n);

/// x <- x + y
void add_to(float* x, const float* y, std::int64_t n);

/// logit[s] += slope * (position[s] - steps_back[s] - place)       ALiBi, the query standing at `place`; steps_back may be null
void add_distances(const std::int32_t* position, const std::int32_t* steps_back, int n, float slope,
                   int place, float* logit);

/// Rotates the first rotary.dims dimensions of one head in place, by angles given as cosines and sines, [dims / 2] each. Of rotary
/// only the shape is read: dims and interleaved.
void rotate_head(float* x, const float* cosine, const float* sine, const Rotary& rotary);

/// out[s] = k[s] rotated back by steps[s] positions. k, out [n, head_dim]; turns [> max steps, rotary.dims]: cosines, then sines,
/// of the angles of so many positions.
void turn_keys(const float* k, const std::int32_t* steps, int n, int head_dim, const Rotary& rotary,
               const float* turns, float* out);

/// The instruction set in use, such as "AVX3".
std::string simd_name();

}  // namespace keyhole
