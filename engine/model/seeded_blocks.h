/// Quantised blocks of random bits, for models that benchmarks make (seeded_model.h). Pure functions; any
/// thread. Knows blocks only.
#pragma once

#include "engine/model/quantised_blocks.h"
#include "engine/model/seeded_value.h"

#include <cstdint>

namespace keyhole {

/// The types that seeded_blocks() makes: those whose factor is a number in fp16.
bool has_seeded_blocks(DType dtype);

/// Writes blocks [first, first + n) of a weight to out [n * block_bytes(dtype)]. Codes and scales are random
/// bits; all blocks have the same factors, so that values have a mean near 0 and about the deviation of
/// seeded_values(). has_seeded_blocks(dtype) is asserted.
void seeded_blocks(DType dtype, const SeededWeight& weight, std::int64_t first, std::int64_t n, void* out);

}  // namespace keyhole
