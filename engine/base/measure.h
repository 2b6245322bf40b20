/// What measurements share: medians and the machine's busy time. For benches; any thread.
#pragma once

#include <cstdint>
#include <vector>

namespace keyhole {

double median(std::vector<double> values);

/// Jiffies that the machine and a process were busy (Linux).
struct CpuTimes {
    double all = 0, own = 0;
    static CpuTimes now(int pid = 0);  ///< 0: this process
};
/// Share of the machine's busy time between two readings that other processes took, 0..1.
double share_of_others(const CpuTimes& before, const CpuTimes& after);

/// Memory that programs can still get without swapping, as the system says (Linux); 0 where it does not say.
std::int64_t free_memory_bytes();

}  // namespace keyhole
