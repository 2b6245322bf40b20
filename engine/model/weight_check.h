/// Weights that hold no numbers. While loading; any thread.
#pragma once

#include "engine/model/safetensors.h"

#include <cstddef>
#include <optional>

namespace keyhole {

struct NonFinite {
    std::size_t n = 0;         ///< NaN and infinite elements among those looked at
    std::size_t n_looked = 0;  ///< elements
    bool has_nan = false;
};

/// Counts them in [n] elements: in all, or in 8 stretches of 32 KiB spread evenly from the first to the last. Nothing when there
/// are none.
std::optional<NonFinite> find_non_finite(DType dtype, const void* data, std::size_t n, bool all);

}  // namespace keyhole
