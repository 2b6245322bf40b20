#include "tests/reference/small_memory.h"

#include "engine/base/index.h"
#include "tests/reference/sanitizer.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <fstream>

namespace reference {
namespace {

void limit_memory(std::size_t more_bytes) {
    std::size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlim_t most = pages * keyhole::to_index(::sysconf(_SC_PAGESIZE)) + more_bytes;
    const rlimit limit{most, most};
    if (!under_a_sanitizer()) ::setrlimit(RLIMIT_AS, &limit);
}

std::string result_of(const std::function<std::string()>& work) {
    try {
        return work();
    } catch (const std::exception& error) {
        return std::string("Error: ") + error.what();
    }
}

}  // namespace

std::string in_small_memory(std::size_t more_bytes, const std::function<std::string()>& work) {
    int ends[2];
    if (::pipe(ends) != 0) return "no pipe";
    const pid_t child = ::fork();
    if (child < 0) return "no child";
    if (child == 0) {
        limit_memory(more_bytes);
        const std::string result = result_of(work);
        const ssize_t n = ::write(ends[1], result.data(), result.size());
        ::_exit(n == static_cast<ssize_t>(result.size()) ? 0 : 1);
    }
    ::close(ends[1]);
    std::string result;
    char part[4096];
    for (ssize_t n = 0; (n = ::read(ends[0], part, sizeof part)) > 0;)
        result.append(part, keyhole::to_index(n));
    ::close(ends[0]);
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFSIGNALED(status) ? "signal " + std::to_string(WTERMSIG(status)) : result;
}

}  // namespace reference
