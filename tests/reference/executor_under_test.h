/// What the cases of the CUDA backend run on: the host in unit tests, a device in those of label gpu.
#pragma once

#include "engine/backend/cuda/executor.h"

#include <memory>
#include <string>

namespace reference {

/// Null with the reason where there is no device. shuffle: the order of threads on the host.
std::shared_ptr<keyhole::cuda::Executor> executor_under_test(unsigned shuffle, std::string& reason);

}  // namespace reference
