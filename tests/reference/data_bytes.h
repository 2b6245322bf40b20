/// What counts for RLIMIT_DATA of this process, in bytes.
#pragma once

#include <sys/resource.h>

#include <fstream>
#include <string>

namespace reference {

inline rlim_t data_bytes() {
    std::ifstream file("/proc/self/status");
    std::string word;
    while (file >> word && word != "VmData:") {
    }
    rlim_t kib = 0;
    file >> kib;
    return kib << 10;
}

}  // namespace reference
