/// Makes the CUDA backend. All of it is here except the device itself, which an Executor represents: on a
/// device through the CUDA module, in tests on the host, kernel by kernel. Engine thread only. Knows no CUDA.
/// CPU twin: backend/cpu.
///
/// A step is one upload (tokens, rows, rules), one list of launches (a graph on a device), downloads of what
/// the record needs, and one wait. K and V have the type of the weights; scores, logits and all sums are
/// float.
#pragma once

#include "engine/backend/backend.h"
#include "engine/backend/cuda/executor.h"

#include <cstdint>
#include <memory>

namespace keyhole {

namespace cuda {

/// How products with weights are computed. The default was not measured on a GPU; `keyhole bench
/// --cublas-from N` finds a better one.
struct ProductOptions {
    /// Number of lanes from which cuBLAS computes a step's products, in the type of the weights. It reads the
    /// weights once, where our own kernels read them once for every 8 lanes. Below this number a lane's bits
    /// do not depend on the other lanes; from it on they do.
    int cublas_from = 16;
    /// True: prompts with 16-bit weights run on tensor cores, with activations rounded to the type of the
    /// weights, where the device has products of that type. False: in float, so that prompt and decode rows
    /// agree.
    bool narrow_prompt = true;
    /// A prompt widens quantised matrices in tiles of whole rows, of at most this many floats (64 MB).
    std::int64_t widened_tile = std::int64_t{16} << 20;
};

/// Bytes that the rows of a step may take until one launch folds the scores of all layers: for Llama-2-7B at
/// 8,192 tokens 34 MB a lane, 67 where any lane tempers, none for logits where attention is recorded. Beyond
/// it, and where the device has no room, several launches fold a share of the layers each. A launch weighs
/// little there: that many bytes belong to many lanes or a long text, whose K and V take milliseconds to
/// read.
inline constexpr std::int64_t kMostWaitingBytes = std::int64_t{512} << 20;

}  // namespace cuda

/// Throws Error(unsupported) for a model that the kernels cannot run, and Error(no_memory), with the sizes,
/// where its weights do not fit. The messages are clauses that make_backend completes.
std::unique_ptr<Backend> make_cuda_backend(std::shared_ptr<const Model> model,
                                           std::shared_ptr<cuda::Executor> executor,
                                           const cuda::ProductOptions& products = {});

}  // namespace keyhole
