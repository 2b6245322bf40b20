#include "engine/device/open_cuda.h"

#include "engine/base/crash_message.h"
#include "engine/model/seeded_model.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <system_error>

namespace keyhole {

std::filesystem::path cuda_module_path() {
    if (const char* named = std::getenv("KEYHOLE_CUDA_MODULE"); named != nullptr && *named != '\0')
        return named;
    constexpr const char* kModule = "libkeyhole_cuda.so";
    std::error_code error;
    const std::filesystem::path folder = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
    const std::filesystem::path beside = folder / kModule;
    return std::filesystem::exists(beside, error) ? beside : folder.parent_path() / "lib/keyhole" / kModule;
}

std::shared_ptr<CudaDevice> open_cuda_device(const std::filesystem::path& module, int device,
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
    const auto abi = reinterpret_cast<CudaAbiEntry>(dlsym(library, kCudaAbiEntry));
    const auto open = reinterpret_cast<CudaOpenEntry>(dlsym(library, kCudaOpenEntry));
    if (abi == nullptr || open == nullptr)
        reason = fmt::format("{} is no CUDA backend of Keyhole", module.string());
    else if (std::string_view(abi()) != cuda_module_abi())
        reason = "the CUDA backend was built for another version of the program";
    else
        return std::shared_ptr<CudaDevice>(open({&seeded_weight, &set_crash_message}, device, reason));
    dlclose(library);
    return nullptr;
}

}  // namespace keyhole
