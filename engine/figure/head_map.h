/// How maps of heads lie, in pictures and in the window. Pure function, for any thread.
#pragma once

#include <cstddef>

namespace keyhole {

/// Returns whether layers are the columns. The longer axis lies across, so that a map is no tower.
constexpr bool layers_lie_across(std::size_t n_layers, std::size_t n_heads) {
    return n_layers > n_heads;
}

}  // namespace keyhole
