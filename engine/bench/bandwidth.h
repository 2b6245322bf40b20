/// Measures the memory bandwidth of the machine or device that a bench runs on: the upper limit of a step's
/// speed. Engine thread only. Knows no model.
#pragma once

#include "engine/backend/module/cuda_module.h"
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
    /// Makes one measurement, the best of a few passes; returns GB/s (1e9 bytes).
    virtual double measure() = 0;
};

/// Host memory: n_threads threads read n_bytes with the widest loads that the processor has, from large
/// pages, in chunks as a step does, and do nothing else.
std::unique_ptr<Bandwidth> host_read(int n_threads, std::int64_t n_bytes);
/// Device memory: copies n_bytes within the device; bytes read and bytes written both count.
std::unique_ptr<Bandwidth> device_copy(std::shared_ptr<CudaDevice> device, std::int64_t n_bytes);

}  // namespace keyhole
