/// Compresses bytes in the zlib format (RFC 1950), which browsers and Python unpack. Any thread; knows
/// nothing of the other folders.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace keyhole {

std::vector<std::byte> deflate_bytes(std::span<const std::byte> bytes);

}  // namespace keyhole
