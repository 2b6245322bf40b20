#include "engine/backend/cuda/module.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <system_error>

namespace keyhole {

std::filesystem::path cuda_module_path() {
    if (const char* named = std::getenv("KEYHOLE_CUDA_MODULE"); named != nullptr && *named != '\0')
        return named;
    std::error_code error;
    return std::filesystem::read_symlink("/proc/self/exe", error).parent_path() / "libkeyhole_cuda.so";
}

std::shared_ptr<cuda::Executor> open_cuda_executor(const std::filesystem::path& module, int device,
                                                   std::string& reason) {
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
    const auto make = reinterpret_cast<CudaMakeExecutor>(dlsym(library, kCudaModuleEntry));
    if (make == nullptr) {
        reason = fmt::format("{} is no CUDA backend of Keyhole", module.string());
        dlclose(library);
        return nullptr;
    }
    return std::shared_ptr<cuda::Executor>(make(kCudaModuleAbi, device, reason));
}

}  // namespace keyhole
