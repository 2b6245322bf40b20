/// A warp, its block and the launch, as the operations see them. One thread.
#pragma once

#include "tests/gpu/ptx/memory.h"
#include "tests/gpu/ptx/program.h"

#include <bit>
#include <unordered_map>

namespace ptx {

inline constexpr std::uint32_t kAllLanes = ~0u;

struct Dim {
    unsigned x = 1, y = 1, z = 1;
};

/// What one thread of another block has published: all that its block wrote before `epoch`, and in it what
/// `thread` wrote. Epochs of a block end at its barriers.
struct Published {
    std::uint32_t epoch = 0, thread = 0;
};
using PublishedBlocks = std::unordered_map<std::uint32_t, Published>;

/// A kernel on its way.
struct Launch {
    const Kernel* kernel = nullptr;
    const Program* program = nullptr;
    Dim grid;
    unsigned n_threads = 0;
    std::vector<std::byte> params;
    std::uint64_t id = 0;  ///< differs from that of launches before
    Memory* memory = nullptr;
    std::unordered_map<std::uint64_t, PublishedBlocks> counters;  ///< by the address of an atomic operation
    std::string printed;                                          ///< the last line of printf
};

/// Units of shared memory: who wrote and read them last, by epoch and thread.
struct SharedCell {
    std::uint32_t writer = 0, reader = 0;
};

struct Block {
    Launch* launch = nullptr;
    std::uint32_t id = 0, epoch = 0;
    std::vector<std::byte> shared;
    std::vector<SharedCell> cells;
    int cell_shift = 2;
    std::vector<Warp> warps;
    /// Acquired from other blocks, by `acquirer` in epoch `acquired_at`; the others have it afterwards.
    PublishedBlocks acquired;
    std::uint32_t acquirer = 0, acquired_at = 0;
    /// By thread: the epoch of its last fence, plus 1; what an atomic operation found and no fence followed.
    std::vector<std::uint32_t> fenced;
    std::unordered_map<std::uint32_t, PublishedBlocks> found;
};

struct Warp {
    std::byte* base[2] = {};                ///< registers, constants
    std::uint32_t mask = 0;                 ///< lanes that run the operation
    std::uint32_t active = 0, waiting = 0;  ///< lanes that have not ended; those at a barrier or collective
    std::int32_t at_barrier = -1;
    std::array<std::int32_t, kLanes> pc{};
    Block* block = nullptr;
    std::uint32_t first_thread = 0;
    std::vector<std::byte> registers, local;

    template <class T>
    T* lanes(std::uint32_t at) const {
        return reinterpret_cast<T*>(base[at & 1u] + (at & ~1u));
    }
};

/// Calls visit(lane) for each lane of the mask.
template <class Visit>
void for_lanes(std::uint32_t mask, Visit visit) {
    for (; mask != 0; mask &= mask - 1) visit(std::countr_zero(mask));
}

/// A fence of the device: what the thread's atomic operations found becomes visible to its block, and what
/// the block wrote before its last barrier, and the thread itself, may be published.
void fence_of_thread(Block& block, std::uint32_t thread);

/// "AddNorm, block 3, thread 5, linear.h:20, line 71 of the PTX (ld.global.f32 %f1, [%rd1]): "
std::string place_of(const Warp& warp, const Op& op, int lane);
[[noreturn]] void fault(const Warp& warp, const Op& op, int lane, const std::string& what);

/// Runs all blocks: several at a time, blocks and warps in an order of this seed. Throws Fault.
void run_grid(Launch& launch, unsigned seed, unsigned n_at_once);

}  // namespace ptx
