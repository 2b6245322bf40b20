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

namespace cuda {

/// How products with weights are made. A default that no GPU has measured: `keyhole bench --cublas-from N` finds it.
struct ProductOptions {
    /// Lanes from which cuBLAS takes the products of a step, in the type of the weights: one read of the weights where own kernels read
    /// them once for every 8 lanes. Below, a lane's bits do not depend on its company; from here on they do.
    int cublas_from = 16;
    /// Prompts on tensor cores, activations rounded to the type of the weights; else in floats, so that prompt and decode rows agree.
    bool narrow_prompt = false;
};

}  // namespace cuda

/// Throws Error(unsupported) for a model that the kernels do not take, Error(no_memory) with the numbers where its weights do not fit;
/// messages are clauses that make_backend completes.
std::unique_ptr<Backend> make_cuda_backend(std::shared_ptr<const Model> model,
                                           std::shared_ptr<cuda::Executor> executor,
                                           const cuda::ProductOptions& products = {});

}  // namespace keyhole
