// The CUDA module: an Executor on one device, with one stream. Lists of launches that repeat run as a graph.
// This half is C++; the kernels are in kernels.cu.
//
// KEYHOLE_CUDA_CHECK=1 in the environment waits after every launch, so that a failure names its kernel, and
// makes no graphs.

#include "engine/backend/cuda/module.h"
#include "engine/backend/cuda/module/kernels.h"

#include "engine/base/error.h"

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

namespace keyhole::cuda {
namespace {

/// Throws with what was tried. Clears the thread's error, so that the next call does not report it again.
void check(cudaError_t status, const std::string& what) {
    if (status == cudaSuccess) return;
    cudaGetLastError();
    fail(ErrorCode::device, "{} failed on the device: {} ({}); start Keyhole again, or take --backend cpu",
         what, cudaGetErrorString(status), cudaGetErrorName(status));
}

void check(cublasStatus_t status, const char* what) {
    if (status != CUBLAS_STATUS_SUCCESS)
        fail(ErrorCode::device, "{} failed in cuBLAS: {}; start Keyhole again, or take --backend cpu", what,
             cublasGetStatusString(status));
}

std::string_view name_of(int kernel) {
    std::string_view name = "a product";
    int i = 0;
    Kernels::for_each([&]<class Kernel>() {
        if (i++ == kernel) name = kernel_name<Kernel>();
    });
    return name;
}

class DeviceExecutor final : public Executor {
  public:
    explicit DeviceExecutor(int device) : device_(device) {
        const char* wanted = std::getenv("KEYHOLE_CUDA_CHECK");
        checks_ = wanted != nullptr && *wanted != '\0' && *wanted != '0';
        enter();
        cudaDeviceProp properties{};
        check(cudaGetDeviceProperties(&properties, device), "asking for the device's properties");
        name_ = properties.name;
        has_bf16_ = properties.major >= 8;
        check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
    }
    ~DeviceExecutor() override {
        cudaSetDevice(device_);  // the destructor may run on any thread
        drop_graph();
        for (const Timed& timed : timed_) cudaEventDestroy(timed.begin), cudaEventDestroy(timed.end);
        if (cublas_ != nullptr) cublasDestroy(cublas_);
        if (workspace_ != nullptr) cudaFree(workspace_);
        if (stream_ != nullptr) cudaStreamDestroy(stream_);
    }

    std::string name() const override { return name_; }
    bool has_products(NumberType type) const override { return type != NumberType::bf16 || has_bf16_; }

    MemoryUse memory() const override {
        enter();
        std::size_t free = 0, total = 0;
        check(cudaMemGetInfo(&free, &total), "asking for the device's memory");
        return {static_cast<std::int64_t>(free), static_cast<std::int64_t>(total)};
    }

    void* allocate(std::size_t n_bytes) override {
        enter();
        void* data = nullptr;
        const cudaError_t status = cudaMalloc(&data, n_bytes);
        if (status == cudaErrorMemoryAllocation) {
            cudaGetLastError();
            const MemoryUse use = memory();
            fail(ErrorCode::no_memory,
                 "{} has no room for {:.1f} MB more, {:.1f} of its {:.1f} MB are free; lower a budget, close "
                 "lanes or "
                 "take --backend cpu",
                 name_, static_cast<double>(n_bytes) / 1e6, static_cast<double>(use.free_bytes) / 1e6,
                 static_cast<double>(use.total_bytes) / 1e6);
        }
        check(status, "taking memory");
        return data;
    }
    void release(void* data) noexcept override {
        cudaSetDevice(device_);
        cudaStreamSynchronize(stream_);
        cudaFree(data);
    }
    void* allocate_host(std::size_t n_bytes) override {
        enter();
        void* data = nullptr;
        check(cudaMallocHost(&data, n_bytes), fmt::format("taking {} bytes of pinned memory", n_bytes));
        return data;
    }
    void release_host(void* data) noexcept override {
        cudaSetDevice(device_);
        cudaStreamSynchronize(stream_);
        cudaFreeHost(data);
    }

    void upload(void* to, const void* from, std::size_t n) override {
        move(to, from, n, cudaMemcpyHostToDevice);
    }
    void download(void* to, const void* from, std::size_t n) override {
        move(to, from, n, cudaMemcpyDeviceToHost);
    }
    void copy(void* to, const void* from, std::size_t n) override {
        move(to, from, n, cudaMemcpyDeviceToDevice);
    }
    void download_rows(void* to, std::size_t to_stride, const void* from, std::size_t from_stride,
                       std::size_t width, std::size_t n_rows) override {
        if (width == 0 || n_rows == 0) return;
        enter();
        check(cudaMemcpy2DAsync(to, to_stride, from, from_stride, width, n_rows, cudaMemcpyDeviceToHost,
                                stream_),
              "copying rows from the device");
    }
    void clear(void* to, std::size_t n) override {
        if (n == 0) return;
        enter();
        check(cudaMemsetAsync(to, 0, n, stream_), "clearing memory");
    }

    void wait() override {
        enter();
        check(cudaStreamSynchronize(stream_), "the work before this");
    }

    void time_launches(bool on) override {
        take_times();
        times_ = on;
    }
    std::vector<double> take_times() override {
        wait();
        std::vector<double> seconds(Kernels::kSize + 1, 0.0);
        for (const Timed& timed : timed_) {
            float ms = 0;
            cudaEventElapsedTime(&ms, timed.begin, timed.end);
            seconds[static_cast<std::size_t>(timed.kernel)] += 1e-3 * static_cast<double>(ms);
            cudaEventDestroy(timed.begin);
            cudaEventDestroy(timed.end);
        }
        timed_.clear();
        return seconds;
    }

  protected:
    void run(std::span<const Launch> launches) override {
        enter();
        for (const Launch& launch : launches) {
            if (times_) begin_timing(launch.kernel);
            submit(launch);
            cudaError_t status = cudaGetLastError();
            if (times_) check(cudaEventRecord(timed_.back().end, stream_), "timing");
            if (status == cudaSuccess && checks_) status = cudaStreamSynchronize(stream_);
            if (status != cudaSuccess)
                check(status, fmt::format("{} with {} x {} x {} blocks of {} threads", name_of(launch.kernel),
                                          launch.grid.x, launch.grid.y, launch.grid.z, launch.n_threads));
        }
    }

    /// Launches a new list directly; when it repeats, runs it as a graph.
    void run_list(std::span<const Launch> launches, bool is_new) override {
        enter();
        if (is_new) drop_graph();
        if (is_new || !uses_graphs_ || checks_ || times_) return run(launches);
        if (graph_ == nullptr) make_graph(launches);
        if (graph_ == nullptr) return run(launches);
        check(cudaGraphLaunch(graph_, stream_), "launching a row's graph");
    }

  private:
    struct Timed {
        int kernel;
        cudaEvent_t begin, end;
    };
    void begin_timing(int kernel) {
        Timed timed{kernel, nullptr, nullptr};
        check(cudaEventCreate(&timed.begin), "timing");
        check(cudaEventCreate(&timed.end), "timing");
        timed_.push_back(timed);
        check(cudaEventRecord(timed.begin, stream_), "timing");
    }

    void submit(const Launch& launch) {
        if (launch.kernel != Launch::kProduct) return launch_kernel(launch, stream_);
        MatrixProduct product;
        std::memcpy(&product, launch.arguments, sizeof(product));
        multiply_now(product);
    }

    /// A row-major product is a column-major one with the factors exchanged. Floats have full precision,
    /// since the default mode uses no TF32. 16-bit factors run on tensor cores, with sums in float.
    void multiply_now(const MatrixProduct& p) {
        if (cublas_ == nullptr) start_cublas();
        const float beta = 0;
        const cudaDataType_t type = p.type == NumberType::f16    ? CUDA_R_16F
                                    : p.type == NumberType::bf16 ? CUDA_R_16BF
                                                                 : CUDA_R_32F;
        check(cublasGemmStridedBatchedEx(
                  cublas_, p.b_transposed != 0 ? CUBLAS_OP_T : CUBLAS_OP_N, CUBLAS_OP_N,
                  static_cast<int>(p.n), static_cast<int>(p.m), static_cast<int>(p.k), &p.alpha, p.b, type,
                  static_cast<int>(p.b_stride), p.b_batch, p.a, type, static_cast<int>(p.a_stride), p.a_batch,
                  &beta, p.c, CUDA_R_32F, static_cast<int>(p.c_stride), p.c_batch, p.n_batch,
                  CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
              "a product");
    }

    /// Gives cuBLAS a workspace of our own. Memory that it allocated itself would become part of graphs,
    /// different memory in each.
    void start_cublas() {
        constexpr std::size_t kWorkspace = std::size_t{32}
                                           << 20;  // NVIDIA's advice for Hopper; others need less
        if (workspace_ == nullptr) workspace_ = allocate(kWorkspace);
        check(cublasCreate(&cublas_), "starting");
        check(cublasSetStream(cublas_, stream_), "taking the stream");
        check(cublasSetWorkspace(cublas_, workspace_, kWorkspace), "taking a workspace");
        check(cublasSetMathMode(cublas_, CUBLAS_DEFAULT_MATH), "choosing full precision");
    }

    /// Selects the device. The current device belongs to the thread, and any thread may call.
    void enter() const { check(cudaSetDevice(device_), fmt::format("using device {}", device_)); }

    void move(void* to, const void* from, std::size_t n, cudaMemcpyKind kind) {
        if (n == 0) return;
        enter();
        check(cudaMemcpyAsync(to, from, n, kind, stream_), fmt::format("copying {} bytes", n));
    }

    void drop_graph() noexcept {
        if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
        graph_ = nullptr;
    }

    /// When capturing fails, later rows are launched kernel by kernel.
    void make_graph(std::span<const Launch> launches) {
        cudaGraph_t graph = nullptr;
        cudaError_t status = cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal);
        if (status == cudaSuccess) {
            // The list already ran once, so cuBLAS is started and has its workspace.
            try {
                for (const Launch& launch : launches) submit(launch);
            } catch (const Error&) {
                uses_graphs_ = false;
            }
            status = cudaStreamEndCapture(stream_, &graph);
        }
        if (status == cudaSuccess && uses_graphs_) status = cudaGraphInstantiate(&graph_, graph, 0);
        if (graph != nullptr) cudaGraphDestroy(graph);
        if (status == cudaSuccess && uses_graphs_) return;
        cudaGetLastError();
        graph_ = nullptr;
        uses_graphs_ = false;
    }

    int device_;
    bool checks_ = false, uses_graphs_ = true, times_ = false, has_bf16_ = false;
    void* workspace_ = nullptr;
    std::vector<Timed> timed_;
    std::string name_;
    cudaStream_t stream_ = nullptr;
    cublasHandle_t cublas_ = nullptr;
    cudaGraphExec_t graph_ = nullptr;
};

/// Returns why there is no such device, as a clause; empty when there is one.
std::string missing_device(int device) {
    int n_devices = 0;
    const cudaError_t status = cudaGetDeviceCount(&n_devices);
    cudaGetLastError();
    if (status == cudaErrorInsufficientDriver) {
        int driver = 0;
        cudaDriverGetVersion(&driver);
        if (driver == 0) return "there is no NVIDIA driver";
        return fmt::format("the NVIDIA driver is for CUDA {}.{} and this build needs {}.{}", driver / 1000,
                           driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    }
    if (status == cudaErrorNoDevice || (status == cudaSuccess && n_devices == 0))
        return "there is no CUDA device";
    if (status != cudaSuccess)
        return fmt::format("the CUDA driver does not start ({})", cudaGetErrorString(status));
    if (device < 0 || device >= n_devices)
        return n_devices == 1
                   ? fmt::format("there is no CUDA device {}, only device 0", device)
                   : fmt::format("there is no CUDA device {}, only 0 to {}", device, n_devices - 1);
    int major = 0, minor = 0;
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    if (major * 10 + minor < 75)
        return fmt::format("it takes devices of compute capability 7.5 or later, and device {} has {}.{}",
                           device, major, minor);
    cudaFuncAttributes attributes{};
    if (cudaSetDevice(device) == cudaSuccess &&
        cudaFuncGetAttributes(&attributes, some_kernel()) != cudaSuccess) {
        cudaGetLastError();
        return fmt::format(
            "this build has no code for device {} (compute capability {}.{}): build it there, or with "
            "CMAKE_CUDA_ARCHITECTURES",
            device, major, minor);
    }
    return {};
}

}  // namespace
}  // namespace keyhole::cuda

namespace keyhole {

extern "C" cuda::Executor* keyhole_cuda_make_executor(std::uint32_t abi, int device, std::string& reason) {
    if (abi != kCudaModuleAbi) {
        reason = "the CUDA backend was built for another version of the program";
        return nullptr;
    }
    try {
        reason = cuda::missing_device(device);
        return reason.empty() ? new cuda::DeviceExecutor(device) : nullptr;
    } catch (const std::exception& error) {
        reason = error.what();
        return nullptr;
    }
}

}  // namespace keyhole
