/// Places of stored keys where the model sees them elsewhere than in the text: positions=cache and
/// positions=compressed. Keys are stored rotated at their original position. Rotations compose, so a key is
/// turned back by the difference when it is used, and the query is rotated at the place of the newest token.
/// positions=original uses none of this. Any thread.
#pragma once

#include "engine/backend/cpu/cache.h"

#include <span>

namespace keyhole::cpu {

/// Writes, by slot, how many positions a token's place lies before its original position, >= 0. Places:
///     cache        the index among what the KV head stores                     StreamingLLM, released code
///     compressed   the running sum of compressed_gap(), the first gap from 0   TOVA, extrapolation
/// Returns the place of the newest token. steps [cache.count(g)].
int steps_back(const CpuKvCache& cache, int g, Positions positions, std::span<std::int32_t> steps);

}  // namespace keyhole::cpu
