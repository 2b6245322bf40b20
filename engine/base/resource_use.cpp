#include "engine/base/resource_use.h"

#include "engine/base/error.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <string_view>

#if __has_include(<malloc.h>)
#include <malloc.h>
#endif

namespace keyhole {

double median(std::vector<double> values) {
    if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
    std::sort(values.begin(), values.end());
    const std::size_t n = values.size();
    return n % 2 != 0 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

CpuTimes CpuTimes::now(int pid) {
    CpuTimes times;
    std::ifstream stat("/proc/stat");
    std::string word;
    stat >> word;
    double field = 0;
    for (int i = 0; i < 8 && stat >> field; ++i)
        if (i != 3 && i != 4) times.all += field;  // skip idle and iowait
    std::ifstream self("/proc/" + (pid == 0 ? std::string("self") : std::to_string(pid)) + "/stat");
    std::string line;
    std::getline(self, line);
    if (line.empty()) return times;  // the process has ended
    std::istringstream rest(line.substr(line.rfind(')') + 2));
    for (int i = 3; i <= 15 && rest >> word; ++i)
        if (i == 14 || i == 15) times.own += std::stod(word);  // utime, stime
    return times;
}

double share_of_others(const CpuTimes& before, const CpuTimes& after) {
    const double all = after.all - before.all, own = after.own - before.own;
    return all > 0 ? std::max(0.0, 1 - own / all) : 0;
}

namespace {

/// Returns the number after `name` in a file of lines such as "name 12"; 0 where it is missing.
std::int64_t number_after(const char* path, std::string_view name) {
    std::ifstream file(path);
    std::string word;
    while (file >> word) {
        std::int64_t value = 0;
        if (word == name && file >> value) return value;
    }
    return 0;
}

/// Returns the bytes of a line in a file of /proc that counts in KiB; 0 where it is missing.
std::int64_t proc_bytes(const char* path, std::string_view name) {
    return number_after(path, name) << 10;
}

}  // namespace

std::int64_t free_memory_bytes() {
    return proc_bytes("/proc/meminfo", "MemAvailable:");
}

namespace {

/// Returns the number in a system file; the largest value where the file holds no number.
std::int64_t number_in(const char* path) {
    std::ifstream file(path);
    std::int64_t value = 0;
    return file >> value ? value : std::numeric_limits<std::int64_t>::max();
}

/// Lowers both numbers to a limit of which `used` are taken.
void apply_limit(std::int64_t limit, std::int64_t used, SystemMemory& memory) {
    memory.total = std::min(memory.total, limit);
    memory.available = std::min(memory.available, std::max<std::int64_t>(0, limit - std::min(used, limit)));
}

/// The same for a limit of this process; name: what it uses, in /proc/self/status.
void apply_limit(int resource, const char* name, SystemMemory& memory) {
    struct rlimit limit {};
    if (::getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0 ||
        limit.rlim_cur >= static_cast<rlim_t>(memory.total))
        return;
    apply_limit(static_cast<std::int64_t>(limit.rlim_cur), proc_bytes("/proc/self/status", name), memory);
}

}  // namespace

SystemMemory system_memory() {
    SystemMemory memory;
    memory.total = static_cast<std::int64_t>(::sysconf(_SC_PHYS_PAGES)) *
                   static_cast<std::int64_t>(::sysconf(_SC_PAGESIZE));
    memory.available = free_memory_bytes();
    const std::int64_t limit = number_in("/sys/fs/cgroup/memory.max");
    if (limit < memory.total) {
        // Pages of files count as used there, and go when memory is needed.
        const char* stat = "/sys/fs/cgroup/memory.stat";
        const std::int64_t files = number_after(stat, "inactive_file") + number_after(stat, "active_file"),
                           used = number_in("/sys/fs/cgroup/memory.current");
        apply_limit(limit, used - std::min(used, files), memory);
    }
    apply_limit(RLIMIT_AS, "VmSize:", memory);
    apply_limit(RLIMIT_DATA, "VmData:", memory);
    return memory;
}

std::string memory_text(std::int64_t n_bytes) {
    const double megabytes = 1e-6 * static_cast<double>(n_bytes);
    return megabytes < 1000 ? fmt::format("{:.0f} MB", megabytes)
                            : fmt::format("{:.1f} GB", 1e-3 * megabytes);
}

void check_room(std::int64_t n_bytes, std::string_view what, std::string_view remedy) {
    constexpr std::int64_t kSmall = std::int64_t{64} << 20;  // asking the system takes longer than it helps
    if (n_bytes < kSmall) return;
    const SystemMemory memory = system_memory();
    if (n_bytes > memory.available && free_memory_bytes() > 0)
        fail(ErrorCode::no_memory, "{} would take {}, and {} are free; {}", what, memory_text(n_bytes),
             memory_text(memory.available), remedy);
}

ResidentMemory resident_memory() {
    return {proc_bytes("/proc/self/status", "VmRSS:"), proc_bytes("/proc/self/status", "VmHWM:")};
}

void return_freed_memory() {
#if defined(__GLIBC__)
    malloc_trim(0);
#endif
}

}  // namespace keyhole
