// The cases of `keyhole selftest`, host against host: they are sound, every kernel has one, and a wrong executor is found out.
#include "engine/backend/cuda/selftest.h"

#include "engine/base/error.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace keyhole::cuda {
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

/// The host, but one kernel does nothing, or fails.
class Broken final : public Executor {
  public:
    Broken(int kernel, bool throws) : host_(make_host_executor()), kernel_(kernel), throws_(throws) {}
    std::string name() const override { return "broken"; }
    MemoryUse memory() const override { return host_->memory(); }
    void* allocate(std::size_t n) override { return host_->allocate(n); }
    void release(void* data) noexcept override { host_->release(data); }
    void* allocate_host(std::size_t n) override { return host_->allocate_host(n); }
    void release_host(void* data) noexcept override { host_->release_host(data); }
    void upload(void* to, const void* from, std::size_t n) override { host_->upload(to, from, n); }
    void download(void* to, const void* from, std::size_t n) override { host_->download(to, from, n); }
    void download_rows(void* to, std::size_t a, const void* from, std::size_t b, std::size_t width,
                       std::size_t n) override {
        host_->download_rows(to, a, from, b, width, n);
    }
    void copy(void* to, const void* from, std::size_t n) override { host_->copy(to, from, n); }
    void clear(void* to, std::size_t n) override { host_->clear(to, n); }
    void multiply(const MatrixProduct& product) override { host_->multiply(product); }
    void wait() override {}

  protected:
    void run(std::span<const Launch> launches) override {
        for (const Launch& launch : launches) {
            if (launch.kernel == kernel_ && throws_) fail(ErrorCode::device, "an illegal address");
            if (launch.kernel != kernel_) host_->launch(launch);
        }
    }
    void run_list(std::span<const Launch> launches, bool) override { run(launches); }

  private:
    std::unique_ptr<Executor> host_;
    int kernel_;
    bool throws_;
};

TEST(CudaSelfTest, FindsAKernelThatDoesNothing) {
    int index = 0;
    Kernels::for_each([&]<class Kernel>() {
        const std::vector<SelfTestLine> lines = run_selftest(std::make_shared<Broken>(index++, false));
        EXPECT_TRUE(std::any_of(lines.begin(), lines.end(), [](const SelfTestLine& line) {
            return !line.passed && line.kernel == kernel_name<Kernel>();
        })) << kernel_name<Kernel>();
    });
}

TEST(CudaSelfTest, NamesTheKernelThatFails) {
    const auto lines = run_selftest(std::make_shared<Broken>(kKernelIndex<FinishRow<Fp16>>, true));
    const auto failed =
        std::find_if(lines.begin(), lines.end(), [](const SelfTestLine& line) { return !line.passed; });
    ASSERT_NE(failed, lines.end());
    EXPECT_EQ(failed->kernel, "FinishRow<Fp16>");
    EXPECT_EQ(failed->failure, "an illegal address");
}

}  // namespace
}  // namespace keyhole::cuda
