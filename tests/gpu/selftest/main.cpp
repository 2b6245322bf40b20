// keyhole_selftest: the kernels against the host, in a program of its own that needs no library.
//     keyhole_selftest [cpu | device index]
#include "engine/backend/cuda/device_executor.h"
#include "engine/backend/cuda/selftest.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

int main(int argc, char** argv) {
    using namespace keyhole;
    const std::string_view where = argc > 1 ? argv[1] : "0";
    std::string reason;
    const std::shared_ptr<cuda::Executor> executor =
        where == "cpu" ? cuda::make_host_executor(77)
                       : cuda::make_device_executor(std::atoi(where.data()), reason);
    if (executor == nullptr) {
        fmt::print(stderr, "keyhole_selftest: {}; keyhole_selftest cpu runs the kernels on the host\n",
                   reason);
        return 1;
    }
    const std::vector<SelfTestLine> lines = cuda::run_selftest(executor);
    fmt::print("{}\n{}", executor->name(), selftest_table(lines));
    return std::all_of(lines.begin(), lines.end(), [](const auto& line) { return line.passed; }) ? 0 : 1;
}
