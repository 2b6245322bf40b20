/// Kernels as plain structs that run on a device or, thread by thread, on the host. Without a device, the
/// host runs are the evidence for their index arithmetic. Knows no CUDA unless nvcc compiles it. Any thread.
///
/// A kernel holds its arguments and defines what one thread does in one phase. Phases are separated by
/// barriers.
///
///     struct Kernel {
///         static constexpr int kPhases = 2;
///         struct Shared { float partial[kMaxThreads]; };  // one per block, contents undefined at the start
///         struct Local {};                                // one per thread, kept across the phases
///         KH_FN void phase(int p, const Block& block, Shared& shared, Local& local) const;
///     };
///
/// In one phase, a thread must not read what another thread writes. run_on_host() shuffles the order of
/// threads, so a kernel that breaks this rule gives different results there.
#pragma once

#include "engine/base/host_device.h"

#ifdef __CUDACC__
#include <cstdio>
#else
#include "engine/base/error.h"

#include <cstring>
#include <memory>
#include <vector>
#endif

// On a device, a failed assertion prints its location and stops the kernel; the next wait throws
// Error(device). Disabled where KH_ASSERT is.
#ifndef __CUDACC__
#define KH_DEVICE_ASSERT(condition) KH_ASSERT(condition)
#elif defined(__CUDA_ARCH__) && !defined(KH_NO_ASSERT)
#define KH_DEVICE_ASSERT(condition)                                                                          \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            printf("%s:%d: block %d %d %d, thread %d: %s does not hold\n", __FILE__, __LINE__,               \
                   static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.z), \
                   static_cast<int>(threadIdx.x), #condition);                                               \
            __trap();                                                                                        \
        }                                                                                                    \
    } while (false)
#else
#define KH_DEVICE_ASSERT(condition) static_cast<void>(0)
#endif

namespace keyhole::cuda {

inline constexpr int kMaxThreads = 256;

struct Block {
    int x = 0, y = 0, z = 0;  ///< index in the grid
    int thread = 0;
    int n_threads = 1;
};

struct Grid {
    int x = 1, y = 1, z = 1;
};

struct NoShared {};
struct NoLocal {};

#ifdef __CUDACC__

template <class Kernel>
__global__ void __launch_bounds__(kMaxThreads) run_kernel(const __grid_constant__ Kernel kernel) {
    // Raw bytes, because shared variables must not have initialisers and host code wants them in a struct.
    __shared__ alignas(16) unsigned char bytes[sizeof(typename Kernel::Shared)];
    auto& shared = *reinterpret_cast<typename Kernel::Shared*>(bytes);
    typename Kernel::Local local;
    const Block block{static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y),
                      static_cast<int>(blockIdx.z), static_cast<int>(threadIdx.x),
                      static_cast<int>(blockDim.x)};
#pragma unroll
    for (int p = 0; p < Kernel::kPhases; ++p) {
        if (p > 0) __syncthreads();
        kernel.phase(p, block, shared, local);
    }
}

template <class Kernel>
void launch(const Kernel& kernel, Grid grid, int n_threads, cudaStream_t stream) {
    run_kernel<<<dim3(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y),
                      static_cast<unsigned>(grid.z)),
                 static_cast<unsigned>(n_threads), 0, stream>>>(kernel);
}

#else

/// Runs every block, phase by phase. `shuffle` 0 runs threads in order; other values give other orders.
/// Shared memory starts as NaN patterns.
template <class Kernel>
void run_on_host(const Kernel& kernel, Grid grid, int n_threads, unsigned shuffle = 1) {
    for (int z = 0; z < grid.z; ++z)
        for (int y = 0; y < grid.y; ++y)
            for (int x = 0; x < grid.x; ++x) {
                auto shared = std::make_unique<typename Kernel::Shared>();
                std::memset(static_cast<void*>(shared.get()), 0xff, sizeof(*shared));
                std::vector<typename Kernel::Local> locals(static_cast<std::size_t>(n_threads));
                for (int p = 0; p < Kernel::kPhases; ++p)
                    for (int i = 0; i < n_threads; ++i) {
                        // An odd step visits every thread of a power of two once.
                        const unsigned step = 2 * shuffle + 1, n = static_cast<unsigned>(n_threads);
                        const unsigned start = shuffle * static_cast<unsigned>(p + 7);
                        const int thread = static_cast<int>((start + static_cast<unsigned>(i) * step) % n);
                        const Block block{x, y, z, thread, n_threads};
                        kernel.phase(p, block, *shared, locals[static_cast<std::size_t>(thread)]);
                    }
            }
}

#endif

}  // namespace keyhole::cuda
