// The cases of `keyhole selftest`, host against host: they are sound, every kernel has one, and they detect a
// wrong executor.
#include "engine/backend/cuda/selftest.h"

#include "engine/base/mapped_file.h"
#include "tests/reference/failing_executor.h"
#include "tests/reference/source_folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <string>

namespace keyhole::cuda::test_cuda_selftest {
namespace {

TEST(CudaSelfTest, TheHostPassesInAnyOrderOfThreads) {
    for (const SelfTestLine& line : run_selftest(make_host_executor(77)))
        EXPECT_TRUE(line.passed) << line.kernel << ", " << line.shape << ": " << line.worst << " "
                                 << line.failure;
}

TEST(CudaSelfTest, EveryKernelHasACase) {
    std::set<std::string> seen;
    for (const SelfTestLine& line : run_selftest(make_host_executor())) seen.insert(line.kernel);
    Kernels::for_each([&]<class Kernel>() {
        EXPECT_TRUE(seen.contains(std::string(kernel_name<Kernel>()))) << kernel_name<Kernel>();
    });
}

/// The record of a run on a device names the kernels that ran; the list of what has not run names the others.
TEST(CudaSelfTest, ARecordSaysOfEveryKernelWhetherAGpuHasRunIt) {
    const std::filesystem::path results = reference::source_folder() / "tests/bench/results";
    std::string said;
    for (const char* name : {"2026-11-27-cuda-h200.txt", "2026-11-28-cuda-h200.txt", "gpu-not-run.md"})
        said += read_text_file(results / name);
    Kernels::for_each([&]<class Kernel>() {
        const std::string name(kernel_name<Kernel>().substr(0, kernel_name<Kernel>().find('<')));
        EXPECT_TRUE(std::regex_search(said, std::regex("\\b" + name + "\\b"))) << name;
    });
}

TEST(CudaSelfTest, FindsAKernelThatDoesNothing) {
    std::map<std::string, std::string> shapes;  // one case a kernel is enough, and much quicker than all
    for (const SelfTestLine& line : run_selftest(make_host_executor()))
        shapes.emplace(line.kernel, line.shape);
    int index = 0;
    Kernels::for_each([&]<class Kernel>() {
        const auto executor = std::make_shared<reference::FailingExecutor>();
        executor->idle_kernel = index++;
        const std::vector<SelfTestLine> lines =
            run_selftest(executor, shapes.at(std::string(kernel_name<Kernel>())));
        EXPECT_TRUE(std::any_of(lines.begin(), lines.end(), [](const SelfTestLine& line) {
            return !line.passed && line.kernel == kernel_name<Kernel>();
        })) << kernel_name<Kernel>();
    });
}

TEST(CudaSelfTest, NamesTheKernelThatFails) {
    const auto executor = std::make_shared<reference::FailingExecutor>();
    executor->bad_kernel = kKernelIndex<FoldRow<Fp16>>;
    const auto lines = run_selftest(executor);
    const auto failed =
        std::find_if(lines.begin(), lines.end(), [](const SelfTestLine& line) { return !line.passed; });
    ASSERT_NE(failed, lines.end());
    EXPECT_EQ(failed->kernel, "FoldRow<Fp16>");
    EXPECT_EQ(failed->failure, "an illegal address");
}

}  // namespace
}  // namespace keyhole::cuda::test_cuda_selftest
