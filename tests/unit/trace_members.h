/// Replaces members of trace files, and limits the memory of processes that read them. For tests on POSIX;
/// single thread.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <zip.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace keyhole::testing_trace {

/// Limits the process's data segment to its present size plus `more` bytes.
inline void limit_data(std::size_t more) {
    std::size_t kilobytes = 0;
    std::ifstream status("/proc/self/status");
    for (std::string word; status >> word;)
        if (word == "VmData:") status >> kilobytes;
    const rlimit limit{(kilobytes << 10) + more, RLIM_INFINITY};
    if (kilobytes == 0 || setrlimit(RLIMIT_DATA, &limit) != 0) std::abort();
}

/// Replaces one member of the trace, or removes it when `bytes` is null.
inline void change_member(const std::filesystem::path& path, const char* name, const std::string* bytes) {
    int error = 0;
    zip_t* zip = zip_open(path.c_str(), 0, &error);
    ASSERT_NE(zip, nullptr);
    if (bytes)
        zip_file_add(zip, name, zip_source_buffer(zip, bytes->data(), bytes->size(), 0), ZIP_FL_OVERWRITE);
    else
        zip_delete(zip, static_cast<zip_uint64_t>(zip_name_locate(zip, name, 0)));
    ASSERT_EQ(zip_close(zip), 0);
}

inline std::string member_of(const std::filesystem::path& path, const char* name) {
    int error = 0;
    zip_t* zip = zip_open(path.c_str(), ZIP_RDONLY, &error);
    zip_stat_t stat;
    zip_stat(zip, name, 0, &stat);
    std::string text(stat.size, 0);
    zip_file_t* file = zip_fopen(zip, name, 0);
    zip_fread(file, text.data(), text.size());
    zip_fclose(file);
    zip_discard(zip);
    return text;
}

}  // namespace keyhole::testing_trace
