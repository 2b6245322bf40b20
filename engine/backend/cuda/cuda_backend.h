/// The CUDA backend: everything but the device itself, which an Executor stands for. The same code runs on a device through the module
/// and, kernel by kernel on the host, in tests. Engine thread only. CPU twin: backend/cpu.
///
/// A step is one upload (tokens, rows, rules), one list of launches (a graph on a device), downloads of what the record needs, one wait.
/// KV has the type of the weights; scores, logits and all sums are float.
#pragma once

#include "engine/backend/backend.h"
#include "engine/backend/cuda/executor.h"

#include <memory>

namespace keyhole {

/// Throws Error(unsupported) for a model that the kernels do not take, Error(no_memory) with the numbers where its weights do not fit;
/// messages are clauses that make_backend completes.
std::unique_ptr<Backend> make_cuda_backend(std::shared_ptr<const Model> model,
                                           std::shared_ptr<cuda::Executor> executor);

}  // namespace keyhole
