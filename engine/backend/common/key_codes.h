/// Products of queries with keys of q8 in integers, for processors with AVX-512 VNNI. A query is narrowed to
/// 24 bits (integer_products.h). With its scale s and the key's scale t of a block of 32 dimensions
///     logit = scale * sum over blocks of (t s) (256 (sum of code u) + sum of code l)
/// in ascending order of the blocks. Sums of integers are exact, so a logit has the same bits whatever is
/// computed with it. No state; any thread.
#pragma once

#include "engine/backend/common/kv_rows.h"

namespace keyhole {

/// Returns whether this processor, limit_integer_paths() and the dimensions allow it. Asked by kernels that
/// Highway compiles for AVX-512.
bool multiplies_key_codes(int head_dim);

/// out[i][s] = scale * sum_d q[i][d] * k[s, d] for the rows [first, last) of q8. A key or query with a number
/// that is not finite gives NaN.
void dot_key_codes(const float* const* q, int n_queries, const KvRows& k, int first, int last, float scale,
                   float* const* out);

}  // namespace keyhole
