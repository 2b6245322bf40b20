/// Makes executors on devices. Engine thread only. Knows no CUDA.
#pragma once

#include "engine/backend/cuda/executor.h"

#include <memory>
#include <string>

namespace keyhole::cuda {

/// Returns an executor on the device of that index, or null with a reason as a clause. Throws
/// nothing. Each module has its own: module/executor.cpp is the one with CUDA.
std::unique_ptr<Executor> make_device_executor(int device, std::string& reason);

}  // namespace keyhole::cuda
