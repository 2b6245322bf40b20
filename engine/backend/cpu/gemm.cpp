#include "engine/backend/cpu/gemm.h"

#include "engine/backend/common/kv_rows.h"
#include "engine/base/error.h"

#ifndef KH_HAVE_DNNL
#define KH_HAVE_DNNL 0
#endif

#if KH_HAVE_DNNL
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#endif

namespace keyhole::cpu {

#if KH_HAVE_DNNL

namespace {

void sgemm(char transpose_b, std::int64_t m, std::int64_t n, std::int64_t k, float alpha, const float* a,
           std::int64_t lda, const float* b, std::int64_t ldb, float* c, std::int64_t ldc) {
    // Otherwise the library would start a team of threads for every calling thread.
    thread_local const bool once = (omp_set_num_threads(1), true);
    (void)once;
    const dnnl_status_t status = dnnl_sgemm('N', transpose_b, m, n, k, alpha, a, lda, b, ldb, 0.0f, c, ldc);
    if (status != dnnl_success)
        fail(ErrorCode::no_memory, "matrix product of {} x {} x {} failed (oneDNN status {})", m, n, k,
             static_cast<int>(status));
}

}  // namespace

void multiply_transposed(std::int64_t m, std::int64_t n, std::int64_t k, float alpha, const float* a,
                         std::int64_t lda, const float* b, std::int64_t ldb, float* c, std::int64_t ldc) {
    sgemm('T', m, n, k, alpha, a, lda, b, ldb, c, ldc);
}

void multiply_plain(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, std::int64_t lda,
                    const float* b, std::int64_t ldb, float* c, std::int64_t ldc) {
    sgemm('N', m, n, k, 1.0f, a, lda, b, ldb, c, ldc);
}

#else

void multiply_transposed(std::int64_t m, std::int64_t n, std::int64_t k, float alpha, const float* a,
                         std::int64_t lda, const float* b, std::int64_t ldb, float* c, std::int64_t ldc) {
    for (std::int64_t i = 0; i < m; ++i)
        for (std::int64_t j = 0; j < n; ++j)
            dot_keys(a + i * lda, b + j * ldb, 1, static_cast<int>(k), alpha, c + i * ldc + j);
}

void multiply_plain(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, std::int64_t lda,
                    const float* b, std::int64_t ldb, float* c, std::int64_t ldc) {
    KH_ASSERT(ldb == n, "ldb={} n={}", ldb, n);
    for (std::int64_t i = 0; i < m; ++i)
        weighted_sum(a + i * lda, b, static_cast<int>(k), static_cast<int>(n), c + i * ldc);
}

#endif

}  // namespace keyhole::cpu
