/// Measurements of machine and process: medians, busy time, memory. Any thread.
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

/// Physical memory of this process, now and at its peak, as the system says (Linux); 0 where it does not say.
struct ResidentMemory {
    std::int64_t now_bytes = 0;
    std::int64_t peak_bytes = 0;
};
ResidentMemory resident_memory();

/// Hands memory that was freed back to the system. The allocator keeps it for the thread that allocated it, so without
/// this a process stays as large as its largest moment. Takes milliseconds: call it after much was freed.
void return_freed_memory();

}  // namespace keyhole
