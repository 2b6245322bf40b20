// How the factory handles a CUDA module that exists, is absent, is broken, or is another library.
#include "engine/backend/backend.h"
#include "engine/base/error.h"
#include "engine/base/mapped_file.h"
#include "engine/device/make_backend.h"
#include "engine/device/open_cuda.h"
#include "engine/device/prover.h"
#include "engine/model/seeded_model.h"
#include "engine/policy/lane_spec.h"
#include "tests/reference/failing_executor.h"
#include "tests/reference/source_folder.h"
#include "tests/reference/tiny_model.h"

#include <gtest/gtest.h>

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>

namespace keyhole::test_backend_factory {
namespace {

/// Returns the reason why the module gives no device; empty when it gives one.
std::string reason_of(const std::filesystem::path& module, int device = 0) {
    std::string reason;
    const std::shared_ptr<CudaDevice> opened = open_cuda_device(module, device, reason);
    EXPECT_EQ(opened == nullptr, !reason.empty());
    return reason;
}

TEST(BackendFactory, OpensAModule) {
    std::string reason;
    const std::shared_ptr<CudaDevice> device =
        open_cuda_device(reference::built("libkeyhole_fake_cuda.so"), 0, reason);
    ASSERT_NE(device, nullptr) << reason;
    EXPECT_EQ(device->identity().name, "fake");
}

TEST(BackendFactory, PassesOnWhatTheModuleMisses) {
    EXPECT_EQ(reason_of(reference::built("libkeyhole_fake_cuda.so"), 3), "there is no CUDA device 3");
}

TEST(BackendFactory, SaysWhenThereIsNoModule) {
    EXPECT_EQ(reason_of("/nonexistent/libkeyhole_cuda.so"), "this build has no CUDA backend");
}

TEST(BackendFactory, SaysWhenTheModuleIsBroken) {
    const std::filesystem::path path = std::filesystem::path(::testing::TempDir()) / "broken_cuda_module.so";
    write_text_file(path, "not a shared library");
    EXPECT_NE(reason_of(path).find("does not load"), std::string::npos);
    std::filesystem::remove(path);
}

TEST(BackendFactory, SaysWhenALibraryIsSomethingElse) {
    Dl_info info;
    ASSERT_NE(dladdr(reinterpret_cast<void*>(&getenv), &info), 0);  // the C library
    EXPECT_NE(reason_of(info.dli_fname).find("is no CUDA backend of Keyhole"), std::string::npos);
}

// A module of another build is asked for nothing: the fake one ends the process there.
TEST(BackendFactory, RefusesAModuleOfAnotherBuild) {
    ::setenv("KEYHOLE_TEST_ABI", "another", 1);
    EXPECT_EQ(reason_of(reference::built("libkeyhole_fake_cuda.so")),
              "the CUDA backend was built for another version of the program");
    ::unsetenv("KEYHOLE_TEST_ABI");
    EXPECT_EQ(reason_of(reference::built("libkeyhole_fake_cuda.so")), "");
    EXPECT_EQ(std::string(cuda_module_abi()).size(), 64u);
}

TEST(BackendFactory, SaysOnceThatThereIsTheCpu) {
    ::setenv("KEYHOLE_CUDA_MODULE", reference::built("libkeyhole_fake_cuda.so").c_str(), 1);
    BackendOptions options;
    options.choice = BackendChoice::cuda;
    const auto message = [&](const char* reason) {
        ::setenv("KEYHOLE_TEST_REASON", reason, 1);
        try {
            make_backend(nullptr, options, nullptr);
        } catch (const Error& error) {
            return std::string(error.what());
        }
        return std::string("it made one");
    };
    EXPECT_EQ(message("it is too warm"), "backend cuda: it is too warm; take --backend cpu");
    EXPECT_EQ(message("it is full; close lanes or take --backend cpu"),
              "backend cuda: it is full; close lanes or take --backend cpu");
    ::unsetenv("KEYHOLE_TEST_REASON");
    ::unsetenv("KEYHOLE_CUDA_MODULE");
}

// The module has its own copy of the type that it throws.
TEST(BackendFactory, CatchesWhatTheModuleThrows) {
    const std::string module = reference::built("libkeyhole_host_cuda.so");
    std::string reason;
    const std::shared_ptr<CudaDevice> device = open_cuda_device(module, 0, reason);
    ASSERT_NE(device, nullptr) << reason;
    const auto latest = reinterpret_cast<reference::FailingExecutor* (*)()>(
        ::dlsym(::dlopen(module.c_str(), RTLD_NOW | RTLD_LOCAL), "keyhole_test_executor"));
    ASSERT_NE(latest, nullptr);
    latest()->fails.allocation = latest()->n_allocations + 1;
    try {
        (void)device->allocate(64);
        FAIL() << "it had room";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::no_memory);
        EXPECT_STREQ(error.what(), "no room");
    }
    ModelShape shape = shape_of("pythia-160m");
    shape.config.n_layers = 1;
    shape.config.head_dim = 12;
    try {
        (void)device->make_backend(make_seeded_model(shape, DType::f16, 1, SeededStorage::unmade), {});
        FAIL() << "heads of 12 dimensions";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::unsupported);
    }
}

// Which matrices have no values is known to the program alone: the module asks it.
TEST(BackendFactory, TheModuleDrawsTheProgramsWeights) {
    ModelShape shape = shape_of("pythia-160m");
    shape.config.n_layers = 1;
    shape.config.d_ff = 64;
    shape.config.n_vocab = 200;
    std::string reason;
    const std::shared_ptr<CudaDevice> device =
        open_cuda_device(reference::built("libkeyhole_host_cuda.so"), 0, reason);
    ASSERT_NE(device, nullptr) << reason;
    std::vector<std::vector<float>> logits;
    for (const SeededStorage storage : {SeededStorage::own, SeededStorage::unmade}) {
        const auto backend = device->make_backend(make_seeded_model(shape, DType::f16, 1, storage), {});
        const auto cache = backend->make_cache(resolve(parse_lane_spec("full").policy, 3, 2));
        RowOutput out;
        const LanePrefill lane{cache.get(), {}, &out};
        backend->prefill(std::vector<int>{5, 6, 7}, {&lane, 1}, nullptr, {});
        logits.push_back(out.next_logits);
    }
    EXPECT_EQ(logits[0], logits[1]);
    EXPECT_NE(logits[0], std::vector<float>(200, 0.0f));
}

TEST(BackendFactory, EveryModuleHasTheHost) {
    std::string reason;
    const std::shared_ptr<CudaDevice> host =
        open_cuda_device(reference::built("libkeyhole_host_cuda.so"), kHostDevice, reason);
    ASSERT_NE(host, nullptr) << reason;
    EXPECT_EQ(host->identity().name, cuda::make_host_executor()->name());
    const std::shared_ptr<std::byte> from = host->allocate(64), to = host->allocate(64);
    EXPECT_EQ(from.get()[63], std::byte{0});
    from.get()[63] = std::byte{7};
    host->copy(to.get(), from.get(), 64);
    EXPECT_EQ(to.get()[63], std::byte{7});
}

/// Names the module that the factory opens.
class BackendPrecision : public ::testing::Test {
  protected:
    void SetUp() override {
        ::setenv("KEYHOLE_CUDA_MODULE", reference::built("libkeyhole_host_cuda.so").c_str(), 1);
    }
    void TearDown() override { ::unsetenv("KEYHOLE_CUDA_MODULE"); }
    static std::string name_with(BackendChoice choice, Precision precision) {
        BackendOptions options{choice, 1, 0};
        options.precision = precision;
        return make_backend(model(), options, &notice)->name();
    }
    static std::shared_ptr<const Model> model() {
        reference::TinyShape shape;
        shape.dtype = reference::StoredAs::f16;
        static const reference::TinyModel folder(shape);
        static const std::shared_ptr<const Model> loaded = load_model(folder.folder());
        return loaded;
    }
    static inline std::string notice;
};

TEST_F(BackendPrecision, ASmallModelTakesFloats) {
    EXPECT_EQ(name_with(BackendChoice::cuda, Precision::weights), "cuda, failing, f16 precision");
    EXPECT_EQ(name_with(BackendChoice::cuda, Precision::floats), "cuda, failing");
    EXPECT_EQ(name_with(BackendChoice::cuda, Precision::automatic), "cuda, failing");
}

TEST_F(BackendPrecision, TheCpuSaysThatItComputesInFloats) {
    EXPECT_TRUE(name_with(BackendChoice::cpu, Precision::weights).starts_with("cpu"));
    EXPECT_EQ(notice, "the CPU computes in floats: --precision weights is for quantised files there");
    EXPECT_TRUE(name_with(BackendChoice::cpu, Precision::floats).starts_with("cpu"));
    EXPECT_EQ(notice, "");
}

/// Nobody misses a device where there is no driver.
TEST_F(BackendPrecision, WithoutADriverNoLineIsAboutCuda) {
    ::unsetenv("KEYHOLE_CUDA_MODULE");
    if (driver_may_be_here()) GTEST_SKIP() << "there is a driver";
    EXPECT_TRUE(name_with(BackendChoice::automatic, Precision::automatic).starts_with("cpu"));
    EXPECT_EQ(notice, "");
    EXPECT_TRUE(name_with(BackendChoice::automatic, Precision::weights).starts_with("cpu"));
    EXPECT_EQ(notice, "the CPU computes in floats: --precision weights is for quantised files there");
}

TEST_F(BackendPrecision, WhatIsMeasuredTakesFloatsUnlessTheUserChose) {
    BackendOptions options;
    EXPECT_EQ(for_measures(options).precision, Precision::floats);
    options.precision = Precision::weights;
    EXPECT_EQ(for_measures(options).precision, Precision::weights);
}

TEST(BackendFactory, RefusesCudaWhereThereIsNone) {
    const auto program = std::filesystem::read_symlink("/proc/self/exe");
    if (std::filesystem::exists(program.parent_path() / "libkeyhole_cuda.so"))
        GTEST_SKIP() << "this build has CUDA";
    BackendOptions options;
    options.choice = BackendChoice::cuda;
    try {
        make_backend(nullptr, options, nullptr);
        FAIL() << "a test program has no CUDA module beside it";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::device);
        EXPECT_STREQ(error.what(), "backend cuda: this build has no CUDA backend; take --backend cpu");
    }
}

}  // namespace
}  // namespace keyhole::test_backend_factory
