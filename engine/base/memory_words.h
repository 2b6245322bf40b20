/// Words of messages about memory that is not there. Knows no file; any thread.
#pragma once

#include <cstddef>
#include <string_view>

namespace keyhole {

inline constexpr std::string_view kMoreRoom = "close other programs or choose a smaller model";

/// Rounded up, so that a small need is not said to be none.
constexpr std::size_t mebibytes(std::size_t n_bytes) {
    return (n_bytes + (std::size_t{1} << 20) - 1) >> 20;
}

}  // namespace keyhole
