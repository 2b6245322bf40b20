// An Executor on one CUDA device, with one stream, and a second one for asynchronous copies of rows. Captures
// that repeat run as a graph. This half is C++; the kernels are in kernels.cu. cuBLAS is opened at
// run time: the module then loads, and says what is missing, on a machine that has none or one of another
// version.
//
// KEYHOLE_CUDA_CHECK=1 in the environment waits after every launch, so that a failure names its kernel, and
// makes no graphs.

#include "engine/backend/cuda/device_executor.h"
#include "engine/backend/cuda/module/kernels.h"

#include "engine/base/error.h"

#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <string>
#include <vector>

namespace keyhole::cuda {
namespace {

/// Returns whether an error may be one of a kernel that was launched before, whichever call reports it.
bool comes_late(cudaError_t status) {
    switch (status) {
        case cudaErrorIllegalAddress:
        case cudaErrorLaunchFailure:
        case cudaErrorLaunchTimeout:
        case cudaErrorMisalignedAddress:
        case cudaErrorIllegalInstruction:
        case cudaErrorInvalidAddressSpace:
        case cudaErrorInvalidPc:
        case cudaErrorHardwareStackError:
        case cudaErrorAssert:
        case cudaErrorECCUncorrectable:
            return true;
        default:
            return false;
    }
}

/// Throws with what was tried. Clears the thread's error, so that the next call does not report it again.
/// is_alone: nothing else can have failed.
void check(cudaError_t status, const std::string& what, bool is_alone = false) {
    if (status == cudaSuccess) return;
    cudaGetLastError();
    if (status == cudaErrorDevicesUnavailable || status == cudaErrorUnknown)
        fail(ErrorCode::device,
             "{} failed, since the device does not answer ({}): it may have been switched off while the "
             "machine slept; start the run again, or take --backend cpu",
             what, cudaGetErrorName(status));
    if (comes_late(status) && !is_alone)
        fail(ErrorCode::device,
             "{}, or earlier work, failed on the device: {} ({}); start Keyhole again (KEYHOLE_CUDA_CHECK=1 "
             "names the kernel), or take --backend cpu",
             what, cudaGetErrorString(status), cudaGetErrorName(status));
    fail(ErrorCode::device, "{} failed on the device: {} ({}); start Keyhole again, or take --backend cpu",
         what, cudaGetErrorString(status), cudaGetErrorName(status));
}

/// The functions of cuBLAS that products need. They have had the same form since CUDA 11.
class Cublas {
  public:
    /// Opens the version that the module was built with, else another that is there. Throws Error(device)
    /// with the reason as a clause.
    Cublas() {
        std::string reason;
        for (const int version : {CUBLAS_VER_MAJOR, 13, 12, 11}) {
            library_ = dlopen(fmt::format("libcublas.so.{}", version).c_str(), RTLD_NOW | RTLD_LOCAL);
            if (library_ != nullptr) break;
            if (reason.empty()) reason = dlerror();
        }
        if (library_ == nullptr)
            fail(ErrorCode::device,
                 "cuBLAS is missing ({}): install libcublas of CUDA {} (Debian and Ubuntu: libcublas-{}-{}), "
                 "or "
                 "put its folder in LD_LIBRARY_PATH",
                 reason, CUDART_VERSION / 1000, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
        load(create, "cublasCreate_v2");
        load(destroy, "cublasDestroy_v2");
        load(set_stream, "cublasSetStream_v2");
        load(set_workspace, "cublasSetWorkspace_v2");
        load(set_math_mode, "cublasSetMathMode");
        load(status_text, "cublasGetStatusString");
        load(multiply, "cublasGemmStridedBatchedEx");
    }

    void check(cublasStatus_t status, const char* what) const {
        if (status != CUBLAS_STATUS_SUCCESS)
            fail(ErrorCode::device, "{} failed in cuBLAS: {}; start Keyhole again, or take --backend cpu",
                 what, status_text(status));
    }

    decltype(&cublasCreate_v2) create = nullptr;
    decltype(&cublasDestroy_v2) destroy = nullptr;
    decltype(&cublasSetStream_v2) set_stream = nullptr;
    decltype(&cublasSetWorkspace_v2) set_workspace = nullptr;
    decltype(&cublasSetMathMode) set_math_mode = nullptr;
    decltype(&cublasGetStatusString) status_text = nullptr;
    // The header overloads it for an older type of the sums.
    using Multiply = cublasStatus_t (*)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int,
                                        const void* alpha, const void* a, cudaDataType, int, long long,
                                        const void* b, cudaDataType, int, long long, const void* beta,
                                        void* c, cudaDataType, int, long long, int, cublasComputeType_t,
                                        cublasGemmAlgo_t);
    Multiply multiply = nullptr;

  private:
    template <class Function>
    void load(Function& function, const char* name) {
        function = reinterpret_cast<Function>(dlsym(library_, name));
        if (function == nullptr)
            fail(ErrorCode::device, "the cuBLAS that is here has no {}: install that of CUDA {}", name,
                 CUDART_VERSION / 1000);
    }

    void* library_ = nullptr;  // stays open: it has threads and state of its own
};

/// Opened once in a process. Throws as its constructor does, each time anew.
const Cublas& cublas() {
    static const Cublas opened;
    return opened;
}

bool is_out_of_memory(cudaError_t status) {
    return status == cudaErrorMemoryAllocation;
}

double in_mb(std::size_t n_bytes) {
    return static_cast<double>(n_bytes) / 1e6;
}

std::string_view name_of(int kernel) {
    std::string_view name = "a product";
    int i = 0;
    Kernels::for_each([&]<class Kernel>() {
        if (i++ == kernel) name = kernel_name<Kernel>();
    });
    return name;
}

/// "GPU-8f0c1d2e-...", as nvidia-smi prints it.
std::string uuid_text(const cudaUUID_t& uuid) {
    std::string text = "GPU-";
    for (int i = 0; i < 16; ++i)
        text += fmt::format("{}{:02x}", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                            static_cast<unsigned>(static_cast<unsigned char>(uuid.bytes[i])));
    return text;
}

/// Returns the version of the kernel's driver ("580.65.06"); empty where the system does not say it.
std::string kernel_driver() {
    std::ifstream file("/sys/module/nvidia/version");
    std::string version;
    file >> version;
    return version;
}

DeviceIdentity identity_of(int device) {
    cudaDeviceProp properties{};
    int driver = 0;
    check(cudaGetDeviceProperties(&properties, device), "asking for the device's properties");
    check(cudaDriverGetVersion(&driver), "asking for the driver's version");
    const std::string of_kernel = kernel_driver();
    return {
        properties.name, uuid_text(properties.uuid),
        fmt::format("{}.{}{}{}", driver / 1000, driver % 1000 / 10, of_kernel.empty() ? "" : " ", of_kernel)};
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
        check(cudaStreamCreateWithFlags(&copies_, cudaStreamNonBlocking), "making a stream");
        check(cudaEventCreateWithFlags(&done_, cudaEventDisableTiming), "making an event");
    }
    ~DeviceExecutor() override {
        cudaSetDevice(device_);  // the destructor may run on any thread
        for (cudaGraphExec_t& graph : graphs_) drop(graph);
        for (const Timed& timed : timed_) cudaEventDestroy(timed.begin), cudaEventDestroy(timed.end);
        if (cublas_ != nullptr) cublas().destroy(cublas_);
        if (workspace_ != nullptr) cudaFree(workspace_);
        if (done_ != nullptr) cudaEventDestroy(done_);
        for (cudaStream_t stream : {copies_, stream_})
            if (stream != nullptr) cudaStreamDestroy(stream);
    }

    std::string name() const override { return name_; }
    DeviceIdentity identity() const override { return identity_of(device_); }
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
        if (is_out_of_memory(status)) {
            cudaGetLastError();
            const MemoryUse use = memory();
            fail(ErrorCode::no_memory,
                 "{} has no room for {:.1f} MB more, {:.1f} of its {:.1f} MB are free; lower a budget, close "
                 "lanes or take --backend cpu",
                 name_, in_mb(n_bytes), static_cast<double>(use.free_bytes) / 1e6,
                 static_cast<double>(use.total_bytes) / 1e6);
        }
        check(status, "taking memory");
        return data;
    }
    void release(void* data) noexcept override {
        finish_both();
        cudaFree(data);
    }
    void* allocate_host(std::size_t n_bytes) override {
        enter();
        void* data = nullptr;
        const cudaError_t status = cudaMallocHost(&data, n_bytes);
        if (is_out_of_memory(status)) {
            cudaGetLastError();
            fail(ErrorCode::no_memory,
                 "the system gave no {:.1f} MB of main memory that {} can reach (pinned memory); close other "
                 "programs, record fewer rows or take --backend cpu",
                 in_mb(n_bytes), name_);
        }
        check(status, fmt::format("taking {:.1f} MB of pinned memory", in_mb(n_bytes)));
        return data;
    }
    void release_host(void* data) noexcept override {
        finish_both();
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
    void download_async(void* to, const void* from, std::size_t n) override {
        if (n == 0) return;
        enter();
        check(cudaEventRecord(done_, stream_), "marking the work before a copy");
        check(cudaStreamWaitEvent(copies_, done_, 0), "waiting for the work before a copy");
        check(cudaMemcpyAsync(to, from, n, cudaMemcpyDeviceToHost, copies_),
              fmt::format("copying {} bytes asynchronously", n));
    }
    void wait_for_copies() override {
        enter();
        check(cudaStreamSynchronize(copies_), "copying rows from the device");
    }
    void clear(void* to, std::size_t n) override {
        if (n == 0) return;
        enter();
        check(cudaMemsetAsync(to, 0, n, stream_), "clearing memory");
    }

    void wait() override {
        enter();
        check(cudaStreamSynchronize(stream_), "a wait for the device");
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
                check(status,
                      fmt::format("{} with {} x {} x {} blocks of {} threads", name_of(launch.kernel),
                                  launch.grid.x, launch.grid.y, launch.grid.z, launch.n_threads),
                      checks_);
        }
    }

    /// Launches a new capture directly; when it repeats, runs it as a graph.
    void run_graph(std::span<const Launch> launches, int slot, bool is_new) override {
        enter();
        cudaGraphExec_t& graph = graphs_[static_cast<std::size_t>(slot)];
        if (is_new) drop(graph);
        if (is_new || !uses_graphs_ || checks_ || times_) return run(launches);
        if (graph == nullptr) graph = make_graph(launches);
        if (graph == nullptr) {
            note_graph(false);
            return run(launches);
        }
        check(cudaGraphLaunch(graph, stream_), "launching a row's graph");
        note_graph(true);
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
        const Cublas& blas = cublas();
        blas.check(blas.multiply(cublas_, p.b_transposed != 0 ? CUBLAS_OP_T : CUBLAS_OP_N, CUBLAS_OP_N,
                                 static_cast<int>(p.n), static_cast<int>(p.m), static_cast<int>(p.k),
                                 &p.alpha, p.b, type, static_cast<int>(p.b_stride), p.b_batch, p.a, type,
                                 static_cast<int>(p.a_stride), p.a_batch, &beta, p.c, CUDA_R_32F,
                                 static_cast<int>(p.c_stride), p.c_batch, p.n_batch, CUBLAS_COMPUTE_32F,
                                 CUBLAS_GEMM_DEFAULT),
                   "a product");
    }

    /// Gives cuBLAS a workspace of our own. Memory that it allocated itself would become part of graphs,
    /// different memory in each.
    void start_cublas() {
        constexpr std::size_t kWorkspace = std::size_t{32}
                                           << 20;  // NVIDIA's advice for Hopper; others need less
        const Cublas& blas = cublas();
        if (workspace_ == nullptr) workspace_ = allocate(kWorkspace);
        cublasHandle_t handle = nullptr;
        blas.check(blas.create(&handle), "starting");
        cublas_ = handle;
        blas.check(blas.set_stream(cublas_, stream_), "taking the stream");
        blas.check(blas.set_workspace(cublas_, workspace_, kWorkspace), "taking a workspace");
        blas.check(blas.set_math_mode(cublas_, CUBLAS_DEFAULT_MATH), "choosing full precision");
    }

    void finish_both() const noexcept {
        cudaSetDevice(device_);
        cudaStreamSynchronize(stream_);
        cudaStreamSynchronize(copies_);
    }

    /// Selects the device. The current device belongs to the thread, and any thread may call.
    void enter() const { check(cudaSetDevice(device_), fmt::format("using device {}", device_)); }

    void move(void* to, const void* from, std::size_t n, cudaMemcpyKind kind) {
        if (n == 0) return;
        enter();
        check(cudaMemcpyAsync(to, from, n, kind, stream_), fmt::format("copying {} bytes", n));
    }

    static void drop(cudaGraphExec_t& graph) noexcept {
        if (graph != nullptr) cudaGraphExecDestroy(graph);
        graph = nullptr;
    }

    /// When capturing fails, later rows are launched kernel by kernel. Returns null then.
    cudaGraphExec_t make_graph(std::span<const Launch> launches) {
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t made = nullptr;
        cudaError_t status = cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal);
        if (status == cudaSuccess) {
            // The launches already ran once, so cuBLAS is started and has its workspace.
            try {
                for (const Launch& launch : launches) submit(launch);
            } catch (const Error&) {
                uses_graphs_ = false;
            }
            status = cudaStreamEndCapture(stream_, &graph);
        }
        if (status == cudaSuccess && uses_graphs_) status = cudaGraphInstantiate(&made, graph, 0);
        if (graph != nullptr) cudaGraphDestroy(graph);
        if (status == cudaSuccess && uses_graphs_) return made;
        cudaGetLastError();
        uses_graphs_ = false;
        return nullptr;
    }

    int device_;
    bool checks_ = false, uses_graphs_ = true, times_ = false, has_bf16_ = false;
    void* workspace_ = nullptr;
    std::vector<Timed> timed_;
    std::string name_;
    cudaStream_t stream_ = nullptr, copies_ = nullptr;
    cudaEvent_t done_ = nullptr;  ///< the work that an asynchronous copy waits for
    cublasHandle_t cublas_ = nullptr;
    std::array<cudaGraphExec_t, kKeptGraphs> graphs_{};
};

/// Returns why a device that exists cannot be used, as a clause.
std::string why_unusable(cudaError_t status, int device, int major, int minor) {
    const std::string it = fmt::format("device {} (compute capability {}.{})", device, major, minor);
    switch (status) {
        case cudaErrorNoKernelImageForDevice:
        case cudaErrorInvalidDeviceFunction:
            return fmt::format(
                "this build has no code for {}: build it there, or with "
                "-DKH_CUDA_ARCHITECTURES={}{}",
                it, major, minor);
        case cudaErrorUnsupportedPtxVersion:
        case cudaErrorInvalidPtx:
            return fmt::format(
                "the driver is older than this build's code for {}, which it would have to "
                "compile: take a driver for CUDA {}.{}, or build with "
                "-DKH_CUDA_ARCHITECTURES={}{}",
                it, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10, major, minor);
        case cudaErrorJitCompilerNotFound:
        case cudaErrorJitCompilationDisabled:
            return fmt::format(
                "the driver has no compiler for this build's code for {}: build with "
                "-DKH_CUDA_ARCHITECTURES={}{}",
                it, major, minor);
        case cudaErrorMemoryAllocation: {
            return fmt::format("{} has too little free memory to start; close other programs that use it",
                               it);
        }
        case cudaErrorDevicesUnavailable:
        case cudaErrorDeviceAlreadyInUse:
            return fmt::format("{} is taken by another process alone (nvidia-smi -q -d COMPUTE)", it);
        case cudaErrorSystemDriverMismatch:
            return "the NVIDIA driver was updated and not loaded again: restart the machine";
        default:
            return fmt::format("{} does not start: {} ({})", it, cudaGetErrorString(status),
                               cudaGetErrorName(status));
    }
}

constexpr int kLeastCapability = 75;

int capability_of(int device) {
    int major = 0, minor = 0;
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    return major * 10 + minor;
}

/// Returns a clause that names the first device that would do, if there is one.
std::string other_device(int n_devices) {
    for (int i = 0; i < n_devices; ++i)
        if (capability_of(i) >= kLeastCapability) return fmt::format("; --device {} would do", i);
    return {};
}

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
    if (status == cudaErrorSystemDriverMismatch)
        return "the NVIDIA driver was updated and not loaded again: restart the machine";
    if (status != cudaSuccess)
        return fmt::format("the CUDA driver does not start: {} ({})", cudaGetErrorString(status),
                           cudaGetErrorName(status));
    if (device < 0 || device >= n_devices)
        return n_devices == 1
                   ? fmt::format("there is no CUDA device {}, only device 0", device)
                   : fmt::format("there is no CUDA device {}, only 0 to {}", device, n_devices - 1);
    const int capability = capability_of(device), major = capability / 10, minor = capability % 10;
    if (capability < kLeastCapability)
        return fmt::format("it takes devices of compute capability 7.5 or later, and device {} has {}.{}{}",
                           device, major, minor, other_device(n_devices));
    cudaError_t usable = cudaSetDevice(device);
    cudaFuncAttributes attributes{};
    if (usable == cudaSuccess) usable = cudaFuncGetAttributes(&attributes, some_kernel());
    cudaGetLastError();
    return usable == cudaSuccess ? std::string() : why_unusable(usable, device, major, minor);
}

}  // namespace

std::unique_ptr<Executor> make_device_executor(int device, std::string& reason) {
    try {
        reason = missing_device(device);
        if (!reason.empty()) return nullptr;
        (void)cublas();
        return std::make_unique<DeviceExecutor>(device);
    } catch (const std::exception& error) {
        reason = error.what();
        return nullptr;
    }
}

}  // namespace keyhole::cuda
