/// A device as the program sees it, over an executor. Engine thread only. Knows no CUDA.
#pragma once

#include "engine/backend/cuda/executor.h"
#include "engine/backend/module/cuda_module.h"

#include <memory>

namespace keyhole::cuda {

std::unique_ptr<CudaDevice> make_cuda_device(std::shared_ptr<Executor> executor);

}  // namespace keyhole::cuda
