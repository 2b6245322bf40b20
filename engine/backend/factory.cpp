#include "engine/backend/backend.h"
#include "engine/backend/cpu/cpu_backend.h"
#include "engine/backend/cuda/module.h"
#include "engine/base/error.h"

#include <dlfcn.h>

#include <system_error>

namespace keyhole {
namespace {

/// Beside the program: where the build puts it.
std::filesystem::path cuda_module_path() {
    std::error_code error;
    return std::filesystem::read_symlink("/proc/self/exe", error).parent_path() / "libkeyhole_cuda.so";
}

}  // namespace

std::unique_ptr<Backend> open_cuda_backend(const std::filesystem::path& module,
                                           const std::shared_ptr<const Model>& model,
                                           const BackendOptions& options, std::string& reason) {
    std::error_code error;
    if (!std::filesystem::exists(module, error)) {
        reason = "this build has no CUDA backend";
        return nullptr;
    }
    void* library = dlopen(module.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        reason = fmt::format("the CUDA backend does not load ({})", dlerror());
        return nullptr;
    }
    const auto make = reinterpret_cast<CudaMakeBackend>(dlsym(library, kCudaModuleEntry));
    if (make == nullptr) {
        reason = fmt::format("{} is no CUDA backend of Keyhole", module.string());
        dlclose(library);
        return nullptr;
    }
    return std::unique_ptr<Backend>(make(kCudaModuleAbi, model, options, reason));
}

std::unique_ptr<Backend> make_backend(std::shared_ptr<const Model> model, const BackendOptions& options,
                                      std::string* notice) {
    if (notice != nullptr) notice->clear();
    if (options.choice != BackendChoice::cpu) {
        std::string reason;
        if (auto backend = open_cuda_backend(cuda_module_path(), model, options, reason)) return backend;
        if (options.choice == BackendChoice::cuda) {
            fail(ErrorCode::device, "backend cuda: {}; take --backend cpu", reason);
        }
        if (notice != nullptr) *notice = reason + "; using the CPU";
    }
    return make_cpu_backend(std::move(model), options.n_threads);
}

}  // namespace keyhole
