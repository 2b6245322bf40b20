/// The door between Keyhole and its CUDA module, a shared library that is opened at run time: a program built with CUDA starts where
/// there is no driver, and one without finds no module. What crosses it is an Executor, memory and launches on one device; the backend
/// that uses it is part of the engine, so that the module needs nothing of the engine, and tests run the same backend on the host.
/// Engine thread only. Knows no CUDA.
#pragma once

#include "engine/backend/backend.h"
#include "engine/backend/cuda/executor.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace keyhole {

/// Changes with what crosses the door: Executor (counted by hand), the list of kernels and the sizes of their arguments.
inline constexpr std::uint32_t kCudaModuleAbi = cuda::Kernels::kFingerprint + 4;
inline constexpr const char* kCudaModuleEntry = "keyhole_cuda_make_executor";

/// The module exports it with C linkage. Returns a new executor for the device; or null with the reason, of which a different `abi`
/// is one (checked before anything else). Throws nothing.
using CudaMakeExecutor = cuda::Executor* (*)(std::uint32_t abi, int device, std::string& reason);

/// Beside the program, where the build puts it; or what KEYHOLE_CUDA_MODULE names in the environment.
std::filesystem::path cuda_module_path();

/// Null, with the reason as a clause ("this build has no CUDA backend"), when the module or a device is not to be had.
/// A module once opened stays open: its executors' code is in it.
std::shared_ptr<cuda::Executor> open_cuda_executor(const std::filesystem::path& module, int device,
                                                   std::string& reason);

/// The same for a backend; a model that the device does not take is a reason too.
std::unique_ptr<Backend> open_cuda_backend(const std::filesystem::path& module,
                                           const std::shared_ptr<const Model>& model,
                                           const BackendOptions& options, std::string& reason);

}  // namespace keyhole
