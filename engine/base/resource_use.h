/// Measurements of machine and process: medians, busy time, memory. Any thread. Knows base only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

/// Returns NaN where there are no values.
double median(std::vector<double> values);

/// Busy time of the whole machine and of one process, in jiffies (Linux).
struct CpuTimes {
    double all = 0, own = 0;
    static CpuTimes now(int pid = 0);  ///< 0: this process
};
/// Returns the share of the machine's busy time between two readings that other processes used, 0..1.
double share_of_others(const CpuTimes& before, const CpuTimes& after);

/// Returns the memory that programs can still get without swapping (Linux: MemAvailable); 0 where unknown.
std::int64_t free_memory_bytes();

struct SystemMemory {
    /// Bytes. The limits of a container and of this process (ulimit -v, -d) count where there are any.
    std::int64_t total = 0, available = 0;
};
SystemMemory system_memory();

/// Throws Error(no_memory) with both numbers if `what` needs more than is free: before the memory is taken,
/// since the system may grant what it does not have, and end some program later. A small need is not looked
/// at. remedy: what the user can do.
void check_room(std::int64_t n_bytes, std::string_view what, std::string_view remedy);
/// "1.4 GB", "38 MB"
std::string memory_text(std::int64_t n_bytes);

/// Physical memory of this process, now and at its peak (Linux); 0 where unknown.
struct ResidentMemory {
    std::int64_t now_bytes = 0;
    std::int64_t peak_bytes = 0;
};
ResidentMemory resident_memory();

/// Returns freed memory to the system. The allocator keeps it for the thread that allocated it, so that
/// without this call a process stays at its peak size. Takes milliseconds: call it after much was freed.
void return_freed_memory();

}  // namespace keyhole
