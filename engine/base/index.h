/// Turns counts and indices, which this project keeps in int, into the type of the standard containers.
#pragma once

#include <concepts>
#include <cstddef>
#include <type_traits>

namespace keyhole {

/// Returns i, which is not negative, as an index.
template <class Int>
requires std::integral<Int> || std::is_enum_v<Int>
constexpr std::size_t to_index(Int i) {
    return static_cast<std::size_t>(i);
}

}  // namespace keyhole
