// Tests that need a device: every kernel compared with the host, memory returned to the driver, messages of
// errors. The cases of test_cuda_backend.cpp run on the device too.
#include "engine/backend/cuda/cuda_backend.h"
#include "engine/backend/cuda/device_executor.h"
#include "engine/backend/cuda/selftest.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/device/open_cuda.h"
#include "engine/device/proof.h"
#include "engine/trace/record.h"
#include "tests/reference/engine_run.h"
#include "tests/reference/executor_under_test.h"
#include "tests/reference/tiny_model.h"

#include <gtest/gtest.h>

namespace reference {

std::shared_ptr<keyhole::cuda::Executor> executor_under_test(unsigned, std::string& reason) {
    return keyhole::cuda::make_device_executor(0, reason);
}

namespace {

using namespace keyhole;

class Gpu : public testing::Test {
  protected:
    void SetUp() override {
        std::string reason;
        executor = executor_under_test(1, reason);
        if (executor == nullptr) GTEST_SKIP() << reason;
    }
    std::shared_ptr<cuda::Executor> executor;
};

TEST_F(Gpu, EveryKernelGivesWhatTheHostGives) {
    for (const cuda::SelfTestLine& line : cuda::run_selftest(executor))
        EXPECT_TRUE(line.passed) << line.kernel << ", " << line.shape << ": " << line.worst << " "
                                 << line.failure;
}

/// In the module, as the program runs it.
TEST_F(Gpu, TheProofPasses) {
    std::string reason;
    const auto device = open_cuda_device(cuda_module_path(), 0, reason);
    ASSERT_NE(device, nullptr) << reason;
    for (const SelfTestLine& line : run_proof(*device))
        EXPECT_TRUE(line.passed) << line.kernel << ", " << line.shape << ": " << line.worst << " "
                                 << line.failure;
}

TEST_F(Gpu, MemoryGoesBackToTheDriver) {
    TinyShape shape;
    shape.n_layers = 4;
    shape.n_heads = shape.n_kv_heads = 8;
    shape.head_dim = 64;
    shape.n_ctx = 8192;
    const TinyModel folder(shape);
    const auto model = load_model(folder.folder());
    const auto backend = make_cuda_backend(model, executor);
    const std::vector<int> tokens = random_tokens(4000, 1);
    const auto policy = [&](const std::string& spec) {
        return resolve(parse_lane_spec(spec).policy, 4000, 20, head_grid(model->layout()));
    };
    const ResolvedPolicy full = policy("full"), small = policy("h2o:budget=64");
    const auto cache = backend->make_cache(full);
    RowOutput out;
    const LanePrefill lane{cache.get(), {}, &out};
    backend->prefill(tokens, {&lane, 1}, nullptr, {});
    const std::int64_t before = executor->memory().free_bytes, had = cache->use().allocated_bytes;
    backend->apply_policy(*cache, small, 3999);
    const std::int64_t given_back = executor->memory().free_bytes - before,
                       evicted = had - cache->use().allocated_bytes;
    EXPECT_GT(evicted, 60 << 20);
    EXPECT_GE(static_cast<double>(given_back), 0.9 * static_cast<double>(evicted));
}

TEST_F(Gpu, TheSameBitsTwice) {
    const TinyModel folder({});
    const auto model = load_model(folder.folder());
    const std::vector<int> tokens = random_tokens(90, 5);
    const std::span<const int> all(tokens);
    const std::vector<std::string> specs = {"full", "keyformer:budget=9", "h2o:budget=9", "tova:budget=9"};
    LaneRows rows[2];
    for (LaneRows& of_run : rows) {
        const auto backend = make_cuda_backend(model, executor);
        of_run = run_backend(*backend, model, specs, all.first(50), all.subspan(50));
    }
    for (std::size_t lane = 0; lane < specs.size(); ++lane)
        for (std::size_t row = 0; row < rows[0][lane].size(); ++row)
            EXPECT_EQ(difference(rows[0][lane][row], rows[1][lane][row]), "")
                << specs[lane] << " row " << row;
}

TEST_F(Gpu, SaysHowMuchMemoryIsMissing) {
    try {
        executor->allocate(keyhole::to_index(executor->memory().total_bytes) * 2);
        FAIL() << "more memory than there is";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::no_memory);
        EXPECT_NE(std::string(error.what()).find("MB are free"), std::string::npos) << error.what();
    }
    executor->release(executor->allocate(1 << 20));  // the executor still works
}

TEST_F(Gpu, SaysWhichDeviceThereIsNot) {
    std::string reason;
    EXPECT_EQ(open_cuda_device(cuda_module_path(), 99, reason), nullptr);
    EXPECT_NE(reason.find("there is no CUDA device 99"), std::string::npos) << reason;
}

}  // namespace
}  // namespace reference
