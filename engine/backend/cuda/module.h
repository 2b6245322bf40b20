/// The door between Keyhole and its CUDA module, a shared library that is opened at run time: a program built with CUDA
/// starts where there is no driver, and one without finds no module. Engine thread only. Knows no CUDA.
#pragma once

#include "engine/backend/backend.h"

#include <filesystem>
#include <memory>
#include <string>

namespace keyhole {

/// Counts changes of what crosses the door: Backend and all that its functions take, and the entry point.
inline constexpr int kCudaModuleAbi = 1;
inline constexpr const char* kCudaModuleEntry = "keyhole_cuda_make_backend";

/// The module exports it with C linkage. Returns a new backend; or null with the reason, of which a different `abi` is one
/// (checked before any other argument is touched). Throws nothing.
using CudaMakeBackend = Backend* (*)(int abi, const std::shared_ptr<const Model>& model,
                                     const BackendOptions& options, std::string& reason);

/// Null, with the reason as a clause ("this build has no CUDA backend"), when the module or a device is not to be had.
/// A module once opened stays open: its backends' code is in it.
std::unique_ptr<Backend> open_cuda_backend(const std::filesystem::path& module,
                                           const std::shared_ptr<const Model>& model,
                                           const BackendOptions& options, std::string& reason);

}  // namespace keyhole
