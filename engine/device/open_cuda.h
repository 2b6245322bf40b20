/// Opens the CUDA module and its devices at run time. Engine thread only. Knows no CUDA.
#pragma once

#include "engine/backend/module/cuda_module.h"

#include <filesystem>
#include <memory>
#include <string>

namespace keyhole {

/// Returns the path of the module: KEYHOLE_CUDA_MODULE from the environment, else beside the program, where
/// the build puts it, else ../lib/keyhole, where an installation has it.
std::filesystem::path cuda_module_path();

/// Opens the module and a device, by its index or kHostDevice or kIdleDevice. Returns null, with the reason
/// as a clause ("this build has no CUDA backend"), when either is not available. An opened module stays open,
/// because it holds the code of its devices and of what they made.
std::shared_ptr<CudaDevice> open_cuda_device(const std::filesystem::path& module, int device,
                                             std::string& reason);

}  // namespace keyhole
