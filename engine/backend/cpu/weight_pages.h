/// Puts the weights of a large model into pages of 2 MB where these are read faster. Engine thread.
#pragma once

#include "engine/base/threads.h"
#include "engine/model/model.h"

#include <cstdint>
#include <memory>
#include <string>

namespace keyhole::cpu {

struct WeightPages {
    double speed = 0;              ///< of reading large pages, over small ones; 0: not measured
    std::int64_t moved_bytes = 0;  ///< that are in large pages
    /// Says it in a sentence; empty where nothing was measured.
    std::string text() const;
};

/// Moves 32 MB of the weights, times a product with them and with 32 MB that were not moved, and moves the
/// rest where the first is faster by 5 % or more. Does nothing for weights of less than 64 MB, which caches
/// hold in part, nor where memory is short. Addresses and values stay. A model is measured once.
WeightPages use_large_pages(const std::shared_ptr<const Model>& model, ThreadPool& pool);

}  // namespace keyhole::cpu
