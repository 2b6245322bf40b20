/// Reads memory as fast as one thread can: the widest loads of the processor's instruction set, and nothing
/// else to wait for. Pure function, for any thread.
#pragma once

#include <cstdint>
#include <span>

namespace keyhole {

/// Returns the sum of the words modulo 2^64, so that no read is left out.
std::uint64_t wide_sum(std::span<const std::uint64_t> words);

}  // namespace keyhole
