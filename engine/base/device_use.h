/// What a device has left and has done. Plain values; any thread. Knows no device.
#pragma once

#include <cstdint>

namespace keyhole {

struct MemoryUse {
    std::int64_t free_bytes = 0, total_bytes = 0;
};

/// Work of an executor since it was made.
struct LaunchCounts {
    std::int64_t launches = 0;   ///< kernels and products, in lists and alone
    std::int64_t lists = 0;      ///< lists run
    std::int64_t new_lists = 0;  ///< lists that differed from the last ones that are kept: a graph each
};

}  // namespace keyhole
