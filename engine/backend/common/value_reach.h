/// How far values reach into a layer's output (`wvnorm` of formulas). Pure; any thread; knows no cache. CUDA
/// twin: OutputReach in backend/cuda/kernels/field.h, with the same bits.
#pragma once

#include "engine/backend/common/integer_products.h"
#include "engine/model/kv_layout.h"
#include "engine/model/model.h"

#include <cstdint>
#include <span>

namespace keyhole {

/// Writes, for each value of a KV head, the sum over the output's channels of |W_o v|, with the part of W_o
/// that a query head has, and of these the mean over the query heads that read the KV head (CriticalKV,
/// equation 6). values: [reach.size(), head_dim], as they are stored.
void reach_of_values(const Model& model, const KvHead& head, const float* values, std::span<float> reach);

/// The same of one value of each KV head of a layer, in two steps and from a laid W_o, which is then read
/// from one end to the other. Whether that goes: all readers are of the layer, and heads are whole cells.
bool can_measure_laid(const KvLayout& layout, int layer, int head_dim);
/// Writes |W_o v| of the output channels of groups [first, last) of W_o for the layer's query heads. values:
/// [KV heads that the layer owns, head_dim]; lengths: [n_heads, n_groups of W_o, 16].
void measure_outputs(IntegerPath path, const LaidMatrix& w, std::int64_t first, std::int64_t last,
                     const KvLayout& layout, int layer, int head_dim, const float* values, float* lengths);
/// Returns how far the KV head's value reaches.
float reach_of_lengths(const LaidMatrix& w, const KvHead& head, const float* lengths);

}  // namespace keyhole
