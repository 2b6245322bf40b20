#include "engine/base/resource_use.h"

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

/// Returns the bytes of the line `name` in a file of /proc that counts in KiB; 0 where it is missing.
std::int64_t proc_bytes(const char* path, std::string_view name) {
    std::ifstream file(path);
    std::string word;
    while (file >> word) {
        std::int64_t kib = 0;
        if (word == name && file >> kib) return kib << 10;
    }
    return 0;
}

}  // namespace

std::int64_t free_memory_bytes() {
    return proc_bytes("/proc/meminfo", "MemAvailable:");
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
