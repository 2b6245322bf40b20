/// Memory that a run takes, before it runs. Pure functions but for the look at the machine; any thread.
#pragma once

#include "engine/model/model.h"

#include <cstdint>

namespace keyhole {

struct MemoryNeed {
    std::int64_t weights = 0;  ///< bytes, as stored; mapped from the file where they need no copy
    std::int64_t cache = 0;    ///< K and V as floats, position, order and running score of every slot
    std::int64_t scratch = 0;  ///< the most that a prompt of that length takes while it is processed
    std::int64_t total() const { return weights + cache + scratch; }
};

/// All weights, as stored.
std::int64_t weight_bytes(const Model& model);

/// Of `batch` lanes with the full cache and a prompt of `context` tokens, on the CPU with so many threads. What libraries and
/// the allocator take for themselves is not in it, nor what the window records.
MemoryNeed memory_need(const Model& model, std::int64_t context, int batch, int n_threads);

/// The most tokens that a cache of `batch` lanes can hold in so many bytes; 0 when not one.
std::int64_t longest_context(const Model& model, int batch, int n_threads, std::int64_t n_bytes);
/// The most lanes that fit at that context.
int largest_batch(const Model& model, std::int64_t context, int n_threads, std::int64_t n_bytes);

struct SystemMemory {
    std::int64_t total = 0,
                 available = 0;  ///< bytes; what a container may take is the limit where there is one
};
SystemMemory system_memory();

}  // namespace keyhole
