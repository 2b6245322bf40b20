/// Estimates the memory of a run before it starts. Any thread. Pure functions. Knows no backend.
#pragma once

#include "engine/base/resource_use.h"
#include "engine/model/model.h"

#include <cstdint>

namespace keyhole {

struct MemoryNeed {
    std::int64_t weights = 0;  ///< bytes, as stored; mapped from the file where no copy is needed
    std::int64_t cache = 0;    ///< K and V, position, order and running scores of every slot
    std::int64_t scratch = 0;  ///< the most that a prompt of that length needs while it is processed
    std::int64_t total() const { return weights + cache + scratch; }
};

/// Returns the bytes of all weights, as stored.
std::int64_t weight_bytes(const Model& model);
bool has_quantised_weights(const Model& model);

/// Returns the need of `batch` lanes with the full cache and a prompt of `context` tokens, on the CPU with
/// n_threads threads. It does not count what libraries and the allocator use themselves, nor what the window
/// records.
MemoryNeed memory_need(const Model& model, std::int64_t context, int batch, int n_threads);

/// Returns the most tokens that `batch` lanes can each hold in n_bytes; 0 when not even one fits.
std::int64_t longest_context(const Model& model, int batch, int n_threads, std::int64_t n_bytes);
/// Returns the largest number of lanes that fit at that context.
int largest_batch(const Model& model, std::int64_t context, int n_threads, std::int64_t n_bytes);

}  // namespace keyhole
