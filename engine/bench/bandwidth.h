/// What memory gives where a bench runs: the speed that no step can beat. Engine thread only.
#pragma once

#include "engine/backend/cuda/executor.h"
#include "engine/base/threads.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace keyhole {

class Bandwidth {
  public:
    virtual ~Bandwidth() = default;
    virtual std::string what() const = 0;  ///< "bare read by 2 threads"
    /// One measurement, in GB/s (1e9 bytes).
    virtual double measure() = 0;
};

/// The host's: so many threads read n_bytes once, in chunks as a step takes them, and nothing else.
std::unique_ptr<Bandwidth> host_read(int n_threads, std::int64_t n_bytes);
/// The device's: a copy of n_bytes from place to place; read and written bytes both count.
std::unique_ptr<Bandwidth> device_copy(std::shared_ptr<cuda::Executor> executor, std::int64_t n_bytes);

}  // namespace keyhole
