/// The emulated device behind the entry points of the CUDA runtime and of cuBLAS (runtime.cpp, cublas.cpp),
/// which take the place of NVIDIA's libraries. A fault ends the work, is printed, and stays the device's
/// error (cudaErrorLaunchFailure, with the fault as its text) until load_ptx(). One thread at a time.
///
/// What a run proves: the arithmetic of indices, the layouts of fragments, alignment, bounds, barriers, the
/// order between blocks, uninitialised memory, the use of streams, events and graphs, and the tolerances, for
/// the PTX that nvcc makes. What it cannot: what ptxas makes of the PTX, caches that hold old values, cuBLAS
/// itself, the driver, and time.
#pragma once

#include "tests/gpu/ptx/memory.h"
#include "tests/gpu/ptx/program.h"

#include <cuda_runtime_api.h>

#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace ptx {

/// Takes another text instead of the build's, and forgets a fault.
void load_ptx(std::string text);
/// Returns the text that the build made for an architecture, 75 or 80.
std::string built_ptx(int architecture = 80);
/// Returns the fault that ended the work; empty when there is none.
std::string last_fault();
/// Returns the kernels of the text that no launch has run since it was loaded.
std::vector<std::string> kernels_not_run();

using Work = std::function<void()>;

}  // namespace ptx

/// The types that the CUDA headers leave open.
struct CUgraph_st {
    std::vector<ptx::Work> work;
};
struct CUgraphExec_st {
    std::vector<ptx::Work> work;
};
struct CUstream_st {
    std::deque<ptx::Work> queue;
    CUgraph_st* captured = nullptr;  ///< takes the work while the stream is captured
    bool capture_failed = false;
};
struct CUevent_st {
    std::shared_ptr<bool> passed = std::make_shared<bool>(true);
    CUstream_st* stream = nullptr;
    double seconds = 0;
};

namespace ptx {

class Device {
  public:
    static Device& get();

    Memory& memory() { return memory_; }
    Program& program();
    void load(std::string text);

    /// Runs the work, now or when somebody waits, or adds it to a capture. Returns the device's error.
    cudaError_t submit(cudaStream_t stream, Work work);
    cudaError_t finish(cudaStream_t stream);
    void finish_until(cudaStream_t stream, const bool& passed);
    cudaError_t finish_all();
    /// Notes a call that no capture allows. Returns the error if there is a capture.
    cudaError_t not_in_capture();
    void run(const Work& work);

    cudaStream_t or_default(cudaStream_t stream) { return stream == nullptr ? &default_ : stream; }
    /// Notes an error for cudaGetLastError().
    cudaError_t noted(cudaError_t error);
    cudaError_t take_last();

    std::string fault;
    std::set<std::string> run_kernels;
    std::vector<cudaStream_t> streams;
    std::uint64_t n_launches = 0;

  private:
    Device();
    ~Device();

    Memory memory_;
    std::unique_ptr<Program> program_;
    CUstream_st default_;
    cudaError_t last_ = cudaSuccess;
};

}  // namespace ptx
