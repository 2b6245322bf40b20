/// Finds NaN and infinity in weights. Used while loading; any thread. Knows stored types only.
#pragma once

#include "engine/model/dtype.h"

#include <cstddef>
#include <optional>

namespace keyhole {

struct NonFinite {
    std::size_t n = 0;         ///< NaN and infinite elements among those checked
    std::size_t n_looked = 0;  ///< elements checked
    bool has_nan = false;
};

/// Counts NaN and infinite values among n elements: in all of them, or in 8 stretches of 32 KiB spread
/// evenly from the first to the last. In a quantised matrix all elements of a block count whose scale or
/// offset is NaN or infinite. Returns nullopt when there are none.
std::optional<NonFinite> find_non_finite(DType dtype, const void* data, std::size_t n, bool all);

}  // namespace keyhole
