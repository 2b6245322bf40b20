/// Dense products of the prompt pass: oneDNN where the build has it, else the kernels of the step. Called
/// inside a thread pool's chunks. Each call computes on the calling thread alone, so the bits do not depend
/// on the number of threads.
#pragma once

#include <cstdint>

namespace keyhole::cpu {

/// C [m, n] = alpha * A [m, k] B^T, B [n, k]; row-major, leading dimensions in floats.
void multiply_transposed(std::int64_t m, std::int64_t n, std::int64_t k, float alpha, const float* a,
                         std::int64_t lda, const float* b, std::int64_t ldb, float* c, std::int64_t ldc);

/// C [m, n] = A [m, k] B [k, n]
void multiply_plain(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, std::int64_t lda,
                    const float* b, std::int64_t ldb, float* c, std::int64_t ldc);

}  // namespace keyhole::cpu
