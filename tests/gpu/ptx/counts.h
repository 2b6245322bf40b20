/// Memory traffic of the kernels, counted as a device with 32-byte sectors and 128-byte lines serves it: for
/// each instruction that a warp runs, the sectors that its lanes touch, and the wavefronts. A wavefront
/// serves one line of global memory, or each bank of shared memory once, of 32 lanes that take 4 bytes, 16
/// lanes that take 8, or 8 lanes that take 16. One thread.
///
/// KEYHOLE_PTX_COUNTS=FILE writes at the end of the process one line a kernel, instruction and buffer:
///
///     kernel <tab> PTX line <tab> instruction <tab> source line <tab> space <tab> bytes of the buffer <tab>
///     times that a warp ran it <tab> bytes that its lanes took <tab> sectors <tab> wavefronts <tab> the
///     wavefronts without bank conflicts
///
/// A buffer is named by its size; 0 in shared memory. Programs that are linked with the emulator set
/// options().counts, and read traffic(); clear_traffic() starts anew.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ptx {

struct Warp;
struct Op;

struct Traffic {
    std::string kernel;       ///< "MatrixVector<Fp16, 1>"
    int line = 0;             ///< of the PTX
    std::string instruction;  ///< "ld.global.v4.f32"
    std::string source;       ///< "linear.h:211 < block.h:154", where the PTX has lines
    std::string space;        ///< "global" or "shared"
    std::uint64_t buffer_bytes = 0;
    std::uint64_t n_warps = 0, bytes = 0, sectors = 0, wavefronts = 0;
    std::uint64_t least = 0;  ///< of shared memory: the wavefronts that there would be without bank conflicts
};

/// Counts what the lanes of a warp take: n bytes each, of global memory, or of shared memory.
void count_access(const Warp& warp, const Op& op, const std::uint64_t* at, std::uint64_t n, bool is_shared);

std::vector<Traffic> traffic();
void clear_traffic();
void write_traffic(const std::string& file);

}  // namespace ptx
