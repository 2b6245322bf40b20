/// Measures the memory bandwidth of the machine or device that a bench runs on: the upper limit of a step's
/// speed. It depends on how many bytes a step reads: the last cache holds some of few. Engine thread only.
/// Knows no model.
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
    virtual std::string what() const = 0;  ///< "bare read of as many bytes by 2 threads"
    /// Makes one measurement, the best of a few passes; returns GB/s (1e9 bytes). n_bytes: what a step reads,
    /// again and again.
    virtual double measure(std::int64_t n_bytes) = 0;
};

/// Host memory: n_threads threads read 1 MB to 1 GB with the widest loads that the processor has, from large
/// pages, in chunks as a step does, and do nothing else.
std::unique_ptr<Bandwidth> host_read(int n_threads);
/// Device memory: copies n_bytes within the device, whatever a step reads; bytes read and bytes written both
/// count.
std::unique_ptr<Bandwidth> device_copy(std::shared_ptr<CudaDevice> device, std::int64_t n_bytes);

}  // namespace keyhole
