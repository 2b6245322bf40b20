/// Opens the CUDA module, a shared library, at run time. So a program built with CUDA starts on machines
/// without a driver, and one built without CUDA finds no module. Only an Executor passes between them: memory
/// and launches on one device. The backend that uses it belongs to the engine, so the module needs nothing of
/// the engine, and tests run the same backend on the host. Engine thread only. Knows no CUDA.
#pragma once

#include "engine/backend/backend.h"
#include "engine/backend/cuda/executor.h"
#include "engine/base/backend_options.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace keyhole {

/// Changes with the interface: Executor (counted by hand: the + 6), the list of kernels and the sizes of
/// their arguments.
inline constexpr std::uint32_t kCudaModuleAbi = cuda::Kernels::kFingerprint + 6;
inline constexpr const char* kCudaModuleEntry = "keyhole_cuda_make_executor";

/// The type of the module's entry, exported with C linkage. Returns a new executor for the device, or null
/// with a reason. A different `abi` is such a reason and is checked first. Throws nothing.
using CudaMakeExecutor = cuda::Executor* (*)(std::uint32_t abi, int device, std::string& reason);

/// Returns the path of the module: KEYHOLE_CUDA_MODULE from the environment, or else beside the program,
/// where the build puts it.
std::filesystem::path cuda_module_path();

/// Opens the module and a device. Returns null, with the reason as a clause ("this build has no CUDA
/// backend"), when either is not available. An opened module stays open, because it holds the code of its
/// executors.
std::shared_ptr<cuda::Executor> open_cuda_executor(const std::filesystem::path& module, int device,
                                                   std::string& reason);

/// Does the same for a backend; a model that the device cannot run is also a reason.
std::unique_ptr<Backend> open_cuda_backend(const std::filesystem::path& module,
                                           const std::shared_ptr<const Model>& model,
                                           const BackendOptions& options, std::string& reason);

}  // namespace keyhole
