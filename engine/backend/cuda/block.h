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
/// A kernel that walks over tiles repeats phases: with `static constexpr int kRepeated`, its first kRepeated
/// phases run `n_tiles(block)` times, the others once afterwards. With `kBefore` as well, that many phases
/// run once before them.
///
///         // The same for all threads of a block; where it is 0, the block does nothing.
///         KH_FN int n_tiles(const Block& block) const;
///         // Runs once before the first tile, without a barrier between.
///         KH_FN void begin(const Block& block, Shared& shared, Local& local) const;
///
/// `static constexpr int kBlocksOfSm` limits registers, so that an SM has room for so many blocks.
///
/// In one phase, a thread must not read what another thread writes, and no block what another block writes.
/// run_on_host() runs threads and blocks in any order, so a kernel that breaks this rule gives different
/// results there. One exception, because a second kernel that joins the blocks' results costs a launch: the
/// last block to write may read what the others wrote, in three phases.
///
///     1. Every block writes its results.
///     2. One thread of every block calls is_last_block() with a counter that these blocks share.
///     3. Where that was true, the block reads with read_across().
///
/// No block waits for another. Which one is the last differs from run to run, so it must read in a fixed
/// order and write what any other block would have written.
#pragma once

#include "engine/base/host_device.h"

#include <cstdint>
#include <cstring>
#ifdef __CUDACC__
#include <cstdio>
#else
#include "engine/base/error.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <type_traits>
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

// For functions whose arguments shall lie in registers.
#ifdef __CUDA_ARCH__
#define KH_INLINE __host__ __device__ __forceinline__
#else
#define KH_INLINE KH_FN
#endif

// Before a loop whose arrays shall lie in registers.
#ifdef __CUDA_ARCH__
#define KH_UNROLL _Pragma("unroll")
// Before a loop whose reads shall be under way together.
#define KH_UNROLL_4 _Pragma("unroll 4")
#define KH_UNROLL_8 _Pragma("unroll 8")
#define KH_NO_UNROLL _Pragma("unroll 1")
#else
#define KH_UNROLL
#define KH_UNROLL_4
#define KH_UNROLL_8
#define KH_NO_UNROLL
#endif

namespace keyhole::cuda {

inline constexpr int kMaxThreads = 256;

struct Block {
    int x = 0, y = 0, z = 0;  ///< index in the grid
    int thread = 0;
    int n_threads = 1;
    int tile = 0, n_tiles = 1;  ///< of the phases that repeat; afterwards tile is n_tiles
};

struct Grid {
    int x = 1, y = 1, z = 1;
};

struct NoShared {};
struct NoLocal {};

/// 16 bytes, read and stored at once.
struct alignas(16) Words {
    std::uint32_t word[4];
};

/// Stores 16 bytes in shared memory at once; `to` is aligned to them.
KH_FN void store_words(const Words& words, void* to) {
#ifdef __CUDA_ARCH__
    // Written out, since the compiler does not see the alignment of every one and would split it.
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
                 :
                 : "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(to))), "r"(words.word[0]),
                   "r"(words.word[1]), "r"(words.word[2]), "r"(words.word[3])
                 : "memory");
#else
    std::memcpy(to, &words, sizeof(words));
#endif
}

/// Counts a block and returns whether it is the last of n_blocks; the counter is then 0 again, for the next
/// launch. The count releases what its block wrote before the barrier that goes before it, and the last one
/// acquires what the others released.
KH_FN bool is_last_block(std::uint32_t& counter, int n_blocks) {
    const auto last = static_cast<std::uint32_t>(n_blocks - 1);
#ifdef __CUDA_ARCH__
    std::uint32_t before;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(__cvta_generic_to_global(&counter)), "r"(last)
                 : "memory");
    return before == last;
#else
    const bool is_last = counter == last;
    counter = is_last ? 0 : counter + 1;
    return is_last;
#endif
}

#ifdef __CUDA_ARCH__
/// Returns the value that thread `from` of the warp passes. All threads of a warp call it. On the host each
/// thread computes by itself what it would get here.
__device__ __forceinline__ float value_of_thread(float value, int from) {
    return __shfl_sync(0xffffffffu, value, from);
}
/// The same from the thread whose number differs in the bits of `of`.
template <class T>
__device__ __forceinline__ T value_beside(T value, int of) {
    return __shfl_xor_sync(0xffffffffu, value, of);
}
#endif

/// Reads what another block wrote in this launch: from L2, since L1 may hold what was there before.
KH_FN float read_across(const float* data) {
#ifdef __CUDA_ARCH__
    return __ldcg(data);
#else
    return *data;
#endif
}

template <class Kernel>
inline constexpr int kRepeatedPhases = 0;
template <class Kernel>
requires(Kernel::kRepeated > 0) inline constexpr int kRepeatedPhases<Kernel> = Kernel::kRepeated;
template <class Kernel>
inline constexpr int kPhasesBefore = 0;  ///< those that repeat
template <class Kernel>
requires(Kernel::kBefore >= 0) inline constexpr int kPhasesBefore<Kernel> = Kernel::kBefore;

/// How many blocks of kMaxThreads an SM shall have room for: a kernel's kBlocksOfSm, or 0, as many as the
/// compiler likes.
template <class Kernel>
inline constexpr int kLeastBlocks = 0;
template <class Kernel>
requires(Kernel::kBlocksOfSm >= 0) inline constexpr int kLeastBlocks<Kernel> = Kernel::kBlocksOfSm;

#ifdef __CUDACC__

template <class Kernel>
__global__ void __launch_bounds__(kMaxThreads, kLeastBlocks<Kernel>)
    run_kernel(const __grid_constant__ Kernel kernel) {
    // Raw bytes, because shared variables must not have initialisers and host code wants them in a struct.
    __shared__ alignas(16) unsigned char bytes[sizeof(typename Kernel::Shared)];
    auto& shared = *reinterpret_cast<typename Kernel::Shared*>(bytes);
    typename Kernel::Local local;
    Block block{static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.z),
                static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x)};
    constexpr int kRepeated = kRepeatedPhases<Kernel>, kBefore = kPhasesBefore<Kernel>;
    if constexpr (kRepeated > 0) {
        block.n_tiles = kernel.n_tiles(block);
        if (block.n_tiles == 0) return;
#pragma unroll
        for (int p = 0; p < kBefore; ++p) {
            if (p > 0) __syncthreads();
            kernel.phase(p, block, shared, local);
        }
        kernel.begin(block, shared, local);
#pragma unroll 1
        for (; block.tile < block.n_tiles; ++block.tile) {
            if (kBefore > 0 || block.tile > 0) __syncthreads();
#pragma unroll
            for (int p = kBefore; p < kBefore + kRepeated; ++p) {
                if (p > kBefore) __syncthreads();
                kernel.phase(p, block, shared, local);
            }
        }
    }
#pragma unroll
    for (int p = kBefore + kRepeated; p < Kernel::kPhases; ++p) {
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

/// Visits [0, n) in one of the orders of RunOrder; see HostOrder.
class Visit {
  public:
    Visit(int n, int order, std::uint32_t seed) : n_(static_cast<std::uint32_t>(n)), order_(order) {
        if (order_ != 2 || n_ < 2) return;
        // Every number once, without a list of them: i * step + start mod n, with step and n coprime.
        std::uint32_t x = seed * 2654435761u + 12345u;
        x ^= x >> 15;
        step_ = x % n_;
        while (std::gcd(step_, n_) != 1) ++step_;
        start_ = (x >> 7) % n_;
    }
    int at(int i) const {
        if (order_ == 0) return i;
        if (order_ == 1) return static_cast<int>(n_) - 1 - i;
        const std::uint64_t to = std::uint64_t{start_} + std::uint64_t{step_} * static_cast<std::uint32_t>(i);
        return static_cast<int>(to % n_);
    }

  private:
    std::uint32_t n_;
    int order_;
    std::uint32_t step_ = 1, start_ = 0;
};

/// A block on its way through the phases of a kernel.
template <class Kernel>
class BlockRun {
    static_assert(std::is_trivially_copyable_v<typename Kernel::Shared> &&
                  std::is_trivially_copyable_v<typename Kernel::Local>);

  public:
    BlockRun(int n_threads, int order, std::uint32_t seed, unsigned char poison, int without)
        : n_threads_(n_threads),
          order_(order),
          without_(without),
          seed_(seed),
          poison_(poison),
          shared_(std::make_unique<typename Kernel::Shared>()),
          locals_(static_cast<std::size_t>(n_threads)) {}

    /// Starts with the block of this number in the grid.
    void begin(const Kernel& kernel, int at, Grid grid) {
        block_ = {at % grid.x, at / grid.x % grid.y, at / (grid.x * grid.y), 0, n_threads_};
        n_run_ = n_done_ = 0;
        if constexpr (kRepeated > 0) block_.n_tiles = kernel.n_tiles(block_);
        std::memset(static_cast<void*>(shared_.get()), poison_, sizeof(*shared_));
        std::memset(static_cast<void*>(locals_.data()), poison_, locals_.size() * sizeof(locals_[0]));
    }
    /// Runs n threads, of one phase after the other. Returns false at the block's end.
    bool advance(const Kernel& kernel, int n) {
        if (kRepeated > 0 && block_.n_tiles == 0) return false;
        const int end_of_tiles = kBefore + kRepeated * block_.n_tiles,
                  n_phases = end_of_tiles + Kernel::kPhases - kBefore - kRepeated;
        constexpr int kStep = std::max(kRepeated, 1);
        while (n > 0) {
            const int in_tiles =
                n_run_ - kBefore;  // phases of tiles that have run, where 0 <= it < all of them
            const bool before = in_tiles < 0, after = n_run_ >= end_of_tiles;
            const int p = before ? n_run_
                          : after ? n_run_ - end_of_tiles + kBefore + kRepeated
                                  : kBefore + in_tiles % kStep;
            const int end = n < n_threads_ - n_done_ ? n_done_ + n : n_threads_;
            const Visit threads(n_threads_, order_, seed_ + 977u * static_cast<std::uint32_t>(n_run_ + 1));
            n -= end - n_done_;
            Block block = block_;
            block.tile = before || kRepeated == 0 ? 0 : after ? block_.n_tiles : in_tiles / kStep;
            for (; n_done_ < end; ++n_done_) {
                block.thread = threads.at(n_done_);
                auto& local = locals_[static_cast<std::size_t>(block.thread)];
                if constexpr (kRepeated > 0)
                    if (n_run_ == kBefore) kernel.begin(block, *shared_, local);
                run_phase(kernel, p, block, local);
            }
            if (n_done_ < n_threads_) continue;
            n_done_ = 0;
            if (++n_run_ == n_phases) return false;
        }
        return true;
    }

  private:
    /// Runs a thread in a phase. Where the barrier after it is left out, the thread goes on to the next phase
    /// at once; in phases that repeat, the last one goes on to the next tile.
    void run_phase(const Kernel& kernel, int p, Block block, typename Kernel::Local& local) {
        constexpr int kAfter = kBefore + kRepeated;
        const int before = p == kBefore && block.tile > 0 ? kAfter - 1 : p - 1;
        if (before >= 0 && before == without_) return;  // has run
        for (;;) {
            kernel.phase(p, block, *shared_, local);
            if (p != without_) return;
            if (kRepeated > 0 && p + 1 == kAfter && block.tile + 1 < block.n_tiles) {
                p = kBefore;
                ++block.tile;
            } else if (++p == Kernel::kPhases) {
                return;
            } else if (kRepeated > 0 && p == kAfter) {
                block.tile = block.n_tiles;
            }
        }
    }

    int n_threads_, order_, without_;
    std::uint32_t seed_;
    unsigned char poison_;
    std::unique_ptr<typename Kernel::Shared> shared_;
    std::vector<typename Kernel::Local> locals_;
    static constexpr int kRepeated = kRepeatedPhases<Kernel>, kBefore = kPhasesBefore<Kernel>;
    Block block_;
    int n_run_ = 0, n_done_ = 0;  // phases, and threads of the present one
};

/// Runs every block, phase by phase: the blocks in an order, and the threads of each phase in another.
/// order: 0 forward, 1 backward, 2 shuffled by `seed`, 3 shuffled and several blocks in turns, each stopping
/// anywhere in a phase. Shared memory and locals start as `poison`.
/// A phase ends for all threads of a block, whatever they did in it: a barrier that only some threads reach
/// cannot be written. without: the phase after which there is no barrier, for tests; -1: there are all.
template <class Kernel>
void run_on_host(const Kernel& kernel, Grid grid, int n_threads, int order, std::uint32_t seed,
                 unsigned char poison, int without = -1) {
    KH_ASSERT(n_threads > 0 && n_threads <= kMaxThreads, "n_threads={}", n_threads);
    const int n_blocks = grid.x * grid.y * grid.z, in_order = std::min(order, 2);
    const Visit blocks(n_blocks, in_order, seed);
    constexpr int kAtOnce = 8;
    std::vector<BlockRun<Kernel>> runs;
    int next = 0;
    for (const int end = std::min(n_blocks, order == 3 ? kAtOnce : 1); next < end; ++next) {
        runs.emplace_back(n_threads, in_order, seed, poison, without);
        runs.back().begin(kernel, blocks.at(next), grid);
    }
    constexpr int kWhole = std::numeric_limits<int>::max();
    const auto at_most = 2 * static_cast<unsigned>(n_threads * Kernel::kPhases);
    std::minstd_rand draw(seed + 1);
    while (!runs.empty()) {
        BlockRun<Kernel>& run = runs.back();
        const int n = order == 3 ? 1 + static_cast<int>(draw() % at_most) : kWhole;
        if (run.advance(kernel, n))
            std::rotate(runs.begin(), runs.end() - 1, runs.end());  // stopped: it waits for all others
        else if (next < n_blocks)
            run.begin(kernel, blocks.at(next++), grid);
        else
            runs.pop_back();
    }
}

/// Does so in a shuffled order.
template <class Kernel>
void run_on_host(const Kernel& kernel, Grid grid, int n_threads, unsigned seed = 1) {
    run_on_host(kernel, grid, n_threads, 2, seed, 0xff);
}

#endif

}  // namespace keyhole::cuda
