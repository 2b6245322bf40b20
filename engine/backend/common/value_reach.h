/// How far values reach into a layer's output (`wvnorm` of formulas). Pure; any thread; knows no cache. CUDA
/// twin: OutputReach in backend/cuda/kernels/field.h, with the same bits.
#pragma once

#include "engine/model/kv_layout.h"
#include "engine/model/model.h"

#include <cstdint>
#include <span>

namespace keyhole {

/// Writes, for each value of a KV head, the sum over the output's channels of |W_o v|, with the part of W_o
/// that a query head has, and of these the mean over the query heads that read the KV head (CriticalKV,
/// equation 6). values: [reach.size(), head_dim], as they are stored.
void reach_of_values(const Model& model, const KvHead& head, const float* values, std::span<float> reach);

}  // namespace keyhole
