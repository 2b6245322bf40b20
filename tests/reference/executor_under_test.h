/// The executor that CUDA backend cases run on: the host in unit tests, a device in tests labelled gpu. The
/// linked source file decides; the cases do not know which one they have.
#pragma once

#include "engine/backend/cuda/executor.h"

#include <memory>
#include <string>

namespace reference {

/// Returns null and sets `reason` where there is no device. shuffle: seed for the order of threads on the
/// host.
std::shared_ptr<keyhole::cuda::Executor> executor_under_test(unsigned shuffle, std::string& reason);

}  // namespace reference
