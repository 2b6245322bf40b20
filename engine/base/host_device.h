/// KH_FN marks a function that CUDA compiles for host and device and C++ for the host alone.
/// mul and add are never contracted into one fused operation, so both give the same bits.
#pragma once

#ifdef __CUDACC__
#define KH_FN __host__ __device__ inline
#else
#define KH_FN inline
#endif

namespace keyhole {

KH_FN float mul(float a, float b) {
#ifdef __CUDA_ARCH__
    return __fmul_rn(a, b);
#else
    return a * b;  // the engine is built with -ffp-contract=off
#endif
}

KH_FN float add(float a, float b) {
#ifdef __CUDA_ARCH__
    return __fadd_rn(a, b);
#else
    return a + b;
#endif
}

}  // namespace keyhole
