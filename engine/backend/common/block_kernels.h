/// The inner loops of kernels.h for quantised matrices. No state; any thread. Products have the bits of those
/// with the same matrix as float.
#pragma once

#include "engine/model/model.h"

#include <cstdint>

namespace keyhole {

/// As multiply_rows(). Blocks are widened in registers.
void multiply_block_rows(const Weight& w, std::int64_t first_row, std::int64_t last_row, const float* x,
                         std::int64_t x_stride, int n_batch, float* y, std::int64_t y_stride);

/// As widen_columns(); first and n are multiples of a block's elements.
void widen_block_columns(const Weight& w, std::int64_t first_row, std::int64_t last_row, std::int64_t first,
                         std::int64_t n, float* out);

}  // namespace keyhole
