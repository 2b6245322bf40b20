/// The boundary of the CUDA module, a shared library that holds the whole CUDA backend. The program opens it
/// at run time (engine/device/open_cuda.h), so that it starts on machines without a driver and is built
/// without a CUDA toolkit. Only what stands here passes between them, and Error. The module has copies of the
/// functions that it needs; whatever has one state for the process stays in the program (ProgramCalls).
/// Engine thread only, except where noted. Knows no CUDA.
#pragma once

#include "engine/backend/backend.h"
#include "engine/base/device_use.h"
#include "engine/base/device_verdict.h"
#include "engine/model/seeded_value.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

namespace cuda {

/// How products with weights are computed. The default was measured on an NVIDIA H200; `keyhole bench
/// --cublas-from N` tries another one.
struct ProductOptions {
    /// Number of lanes from which cuBLAS computes a step's products, in the type of the weights. It reads the
    /// weights once, where our own kernels read them once for every 8 lanes. Below this number a lane's bits
    /// do not depend on the other lanes; from it on they do.
    int cublas_from = 8;
    /// True: with 16-bit weights, prompts and cuBLAS's products run on tensor cores, with activations rounded
    /// to the type of the weights, where the device has products of that type. False: all in floats, as on
    /// the CPU.
    bool weights_precision = true;
    /// True: a step multiplies quantised matrices in integers, with the bits of the CPU's
    /// (common/integer_products.h). False: it widens them to floats.
    bool integers = true;
    /// A prompt widens quantised matrices in tiles of whole rows, of at most this many floats (64 MB).
    std::int64_t widened_tile = std::int64_t{16} << 20;
};

}  // namespace cuda

/// Receives the share that is done, 0..1, and what comes next ("AttendSplit<Fp16>, 1 to 601 slots"), before
/// that runs: after a hang or a crash the last report names the part that failed.
using ProofProgress = std::function<void(double share, const std::string& what)>;

/// An open device. Its backends and memory keep it open without it.
class CudaDevice {
  public:
    virtual ~CudaDevice() = default;
    virtual DeviceIdentity identity() const = 0;
    virtual MemoryUse memory() const = 0;  ///< as the driver reports it
    virtual LaunchCounts counts() const = 0;

    /// Throws Error(unsupported) for a model that the kernels cannot run, and Error(no_memory), with the
    /// sizes, where its weights do not fit. The messages are clauses, as "this build has no CUDA backend".
    virtual std::unique_ptr<Backend> make_backend(std::shared_ptr<const Model> model,
                                                  const cuda::ProductOptions& products) = 0;
    /// Compares every kernel and every copy with the same on the host. Returns a line for each kernel and
    /// case; a failing case gives a line, nothing throws. progress: may be empty.
    virtual std::vector<SelfTestLine> check_kernels(const ProofProgress& progress) = 0;

    /// Returns memory of the device, all zeros; the last pointer frees it. Throws Error(no_memory) with the
    /// requested and the free bytes.
    virtual std::shared_ptr<std::byte> allocate(std::int64_t n_bytes) = 0;
    /// Copies within the device and waits.
    virtual void copy(std::byte* to, const std::byte* from, std::int64_t n_bytes) = 0;
};

/// Devices that every module has besides those of its driver: kernels thread by thread on the host, and one
/// that does nothing, for measuring the host's part of a step.
inline constexpr int kHostDevice = -1, kIdleDevice = -2;

/// What the module calls in the program. Any thread.
struct ProgramCalls {
    std::optional<SeededWeight> (*seeded_weight)(const Weight& weight) = nullptr;  ///< of seeded_model.h
    void (*set_crash_message)(std::string_view words) noexcept = nullptr;          ///< of crash_message.h
};

/// Returns a hash of everything that a layout at the boundary can depend on: the headers below this one and
/// the compiler. Program and module each have it from their build.
const char* cuda_module_abi();

/// The module's two entries, with C linkage. The first returns its cuda_module_abi(): where it is not the
/// program's, the program calls nothing else. The second returns a new device, or null with a reason as a
/// clause, and throws nothing.
inline constexpr const char* kCudaAbiEntry = "keyhole_cuda_abi";
inline constexpr const char* kCudaOpenEntry = "keyhole_cuda_open";
using CudaAbiEntry = const char* (*)();
using CudaOpenEntry = CudaDevice* (*)(const ProgramCalls& program, int device, std::string& reason);

}  // namespace keyhole
