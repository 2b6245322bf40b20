/// Makes the CUDA backend. All of it is here except the device itself, which an Executor represents: on a
/// device in the CUDA module, in tests on the host, kernel by kernel. Engine thread only. Knows no CUDA.
/// CPU twin: backend/cpu.
///
/// A step is one upload (tokens, rows, rules), one list of launches (a graph on a device), downloads of what
/// the record needs, and one wait. K and V have the policy's type; scores, logits and all sums are float.
#pragma once

#include "engine/backend/cuda/executor.h"
#include "engine/backend/module/cuda_module.h"

#include <cstdint>
#include <memory>

namespace keyhole {

namespace cuda {

/// Bytes that the rows of a step may take until one launch folds the scores of all layers: for Llama-2-7B at
/// 8,192 tokens 34 MB a lane, 67 where any lane tempers, none for logits where attention is recorded. Beyond
/// it, and where the device has no room, several launches fold a share of the layers each. A launch weighs
/// little there: that many bytes belong to many lanes or a long text, whose K and V take milliseconds to
/// read.
inline constexpr std::int64_t kMostWaitingBytes = std::int64_t{512} << 20;

}  // namespace cuda

/// Throws what CudaDevice::make_backend() does.
std::unique_ptr<Backend> make_cuda_backend(std::shared_ptr<const Model> model,
                                           std::shared_ptr<cuda::Executor> executor,
                                           const cuda::ProductOptions& products = {});

}  // namespace keyhole
