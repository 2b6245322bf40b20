// How the factory handles a CUDA module that exists, is absent, is broken, or is another library.
#include "engine/backend/backend.h"
#include "engine/backend/cuda/module.h"
#include "engine/base/error.h"
#include "engine/base/mapped_file.h"
#include "engine/device/make_backend.h"
#include "tests/reference/source_folder.h"

#include <gtest/gtest.h>

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>

namespace keyhole::test_backend_factory {
namespace {

/// Returns the reason why the module gives no executor; empty when it gives one.
std::string reason_of(const std::filesystem::path& module, int device = 0) {
    std::string reason;
    const std::shared_ptr<cuda::Executor> executor = open_cuda_executor(module, device, reason);
    EXPECT_EQ(executor == nullptr, !reason.empty());
    return reason;
}

TEST(BackendFactory, OpensAModule) {
    std::string reason;
    const std::shared_ptr<cuda::Executor> executor =
        open_cuda_executor(reference::built("libkeyhole_fake_cuda.so"), 0, reason);
    ASSERT_NE(executor, nullptr) << reason;
    EXPECT_EQ(executor->name(), "fake");
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
