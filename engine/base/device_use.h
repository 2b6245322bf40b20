/// What a device has left and has done. Plain values; any thread. Knows no device.
#pragma once

#include <cstdint>

namespace keyhole {

struct MemoryUse {
    std::int64_t free_bytes = 0, total_bytes = 0;
};

/// Work of an executor since it was made.
struct LaunchCounts {
    std::int64_t launches = 0;       ///< kernels and products, in graphs and alone
    std::int64_t captures = 0;       ///< lists of launches that were captured, one a step
    std::int64_t new_graphs = 0;     ///< those that differed from the last ones that are kept: a graph each
    std::int64_t graphs = 0;         ///< those that ran as a graph; the others ran launch by launch
    std::int64_t failed_graphs = 0;  ///< graphs that the device did not make

    LaunchCounts operator-(const LaunchCounts& before) const {
        return {launches - before.launches, captures - before.captures, new_graphs - before.new_graphs,
                graphs - before.graphs, failed_graphs - before.failed_graphs};
    }
    LaunchCounts operator+(const LaunchCounts& more) const { return *this - (LaunchCounts{} - more); }
};

}  // namespace keyhole
