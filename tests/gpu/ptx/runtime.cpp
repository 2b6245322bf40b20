// Stand-ins for the CUDA runtime's entry points, as executor.cpp and nvcc's host code of the kernels call
// them.
#include "tests/gpu/ptx/counts.h"
#include "tests/gpu/ptx/device.h"
#include "tests/gpu/ptx/options.h"
#include "tests/gpu/ptx/warp.h"

#include <fmt/format.h>

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>

namespace ptx {
namespace {

constexpr std::uint64_t kCapacity = std::uint64_t{6} << 30;

std::string text_of(const std::string& file) {
    std::ifstream in(file, std::ios::binary);
    std::stringstream text;
    text << in.rdbuf();
    if (!in) throw Fault("cannot read the PTX in " + file);
    return text.str();
}

std::string environment(const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
}

/// The kernels that host code registered: their names in the PTX by the address of their stub. Never freed,
/// since host code takes its kernels back when the process ends.
std::map<const void*, std::string>& registered() {
    static auto* names = new std::map<const void*, std::string>;
    return *names;
}

struct Configuration {
    dim3 grid, block;
    std::size_t shared = 0;
    cudaStream_t stream = nullptr;
};
thread_local std::vector<Configuration> configurations;

double seconds_now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Options& options() {
    static Options all = [] {
        Options read;
        read.file = environment("KEYHOLE_PTX");
        if (const std::string seed = environment("KEYHOLE_PTX_SEED"); !seed.empty())
            read.seed = static_cast<unsigned>(std::atoi(seed.c_str()));
        if (const std::string n = environment("KEYHOLE_PTX_BLOCKS"); !n.empty())
            read.n_blocks = static_cast<unsigned>(std::max(1, std::atoi(n.c_str())));
        read.late_streams = environment("KEYHOLE_PTX_STREAMS") == "late";
        read.approximate = environment("KEYHOLE_PTX_APPROXIMATE") == "1";
        read.counts_file = environment("KEYHOLE_PTX_COUNTS");
        read.counts = !read.counts_file.empty();
        return read;
    }();
    return all;
}

/// Beside this library.
std::string built_ptx(int architecture) {
    Dl_info info{};
    dladdr(reinterpret_cast<const void*>(&built_ptx), &info);
    const std::string library = info.dli_fname;
    return text_of(fmt::format("{}kernels_{}.ptx", library.substr(0, library.rfind('/') + 1), architecture));
}

void load_ptx(std::string text) {
    Device::get().load(std::move(text));
}
std::string last_fault() {
    return Device::get().fault;
}
std::vector<std::string> kernels_not_run() {
    std::vector<std::string> names;
    for (const std::string& name : Device::get().program().kernels())
        if (!Device::get().run_kernels.contains(name)) names.push_back(name);
    return names;
}

// --- the device --------------------------------------------------------------------------------------------

Device::Device() : memory_(kCapacity) {
    (void)options();
}
Device::~Device() {
    if (!options().counts_file.empty()) write_traffic(options().counts_file);
}
Device& Device::get() {
    static Device device;
    return device;
}

Program& Device::program() {
    if (program_ == nullptr)
        program_ = std::make_unique<Program>(options().file.empty() ? built_ptx() : text_of(options().file));
    return *program_;
}
void Device::load(std::string text) {
    finish_all();
    program_ = std::make_unique<Program>(std::move(text));
    fault.clear();
    run_kernels.clear();
    last_ = cudaSuccess;
}

void Device::run(const Work& work) {
    if (!fault.empty()) return;
    try {
        work();
    } catch (const std::exception& error) {
        fault = error.what();
        std::fprintf(stderr, "ptx: %s\n", fault.c_str());
    }
}

cudaError_t Device::submit(cudaStream_t stream, Work work) {
    stream = or_default(stream);
    if (stream->captured != nullptr) {
        stream->captured->work.push_back(std::move(work));
        return cudaSuccess;
    }
    if (options().late_streams)
        stream->queue.push_back(std::move(work));
    else
        run(work);
    return noted(fault.empty() ? cudaSuccess : cudaErrorLaunchFailure);
}

void Device::finish_until(cudaStream_t stream, const bool& passed) {
    while (!passed && !stream->queue.empty()) {
        const Work work = std::move(stream->queue.front());
        stream->queue.pop_front();
        run(work);
    }
}
cudaError_t Device::finish(cudaStream_t stream) {
    stream = or_default(stream);
    if (stream->captured != nullptr) return not_in_capture();
    const bool never = false;
    finish_until(stream, never);
    return noted(fault.empty() ? cudaSuccess : cudaErrorLaunchFailure);
}
cudaError_t Device::finish_all() {
    const bool never = false;
    for (const cudaStream_t stream : streams) finish_until(stream, never);
    finish_until(&default_, never);
    return noted(fault.empty() ? cudaSuccess : cudaErrorLaunchFailure);
}

cudaError_t Device::not_in_capture() {
    cudaError_t error = cudaSuccess;
    for (const cudaStream_t stream : streams)
        if (stream->captured != nullptr) {
            stream->capture_failed = true;
            error = noted(cudaErrorStreamCaptureUnsupported);
        }
    return error;
}

cudaError_t Device::noted(cudaError_t error) {
    if (error != cudaSuccess) last_ = error;
    return error;
}
cudaError_t Device::take_last() {
    const cudaError_t error = last_;
    last_ = fault.empty() ? cudaSuccess : cudaErrorLaunchFailure;
    return error;
}

// --- launches ----------------------------------------------------------------------------------------------

namespace {

void run_launch(const Kernel& kernel, dim3 grid, unsigned n_threads, const std::vector<std::byte>& params) {
    Device& device = Device::get();
    Launch launch;
    launch.kernel = &kernel;
    launch.program = &device.program();
    launch.grid = {grid.x, grid.y, grid.z};
    launch.n_threads = n_threads;
    launch.params = params;
    launch.id = 1 + ++device.n_launches % 0xfffff;
    launch.memory = &device.memory();
    run_grid(launch, options().seed, options().n_blocks);
}

cudaError_t launch(const void* stub, dim3 grid, dim3 block, void** arguments, std::size_t shared,
                   cudaStream_t stream) {
    Device& device = Device::get();
    const auto found = registered().find(stub);
    if (found == registered().end()) return device.noted(cudaErrorInvalidDeviceFunction);
    const Kernel* kernel = nullptr;
    device.run([&] { kernel = &device.program().kernel(found->second); });
    if (kernel == nullptr) return device.noted(cudaErrorLaunchFailure);
    const std::uint64_t n_threads = std::uint64_t{block.x} * block.y * block.z;
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || n_threads == 0 || grid.x > 0x7fffffffu ||
        grid.y > 65535 || grid.z > 65535 || n_threads > kernel->max_threads ||
        kernel->shared_bytes + shared > 48 * 1024)
        return device.noted(cudaErrorInvalidConfiguration);
    if (block.y != 1 || block.z != 1 || shared != 0) {
        device.run(
            [] { throw Fault("blocks of several dimensions and dynamic shared memory are not emulated"); });
        return device.noted(cudaErrorLaunchFailure);
    }
    device.run_kernels.insert(found->second);
    std::vector<std::byte> params(kernel->param_bytes);
    for (std::size_t i = 0; i < kernel->param_sizes.size(); ++i)
        std::memcpy(params.data() + kernel->param_offsets[i], arguments[i], kernel->param_sizes[i]);
    return device.submit(stream,
                         [kernel, grid, block, params] { run_launch(*kernel, grid, block.x, params); });
}

// --- copies ------------------------------------------------------------------------------------------------

/// Copies rows. Device memory, and pinned memory of the host, is held against its bounds.
void copy(void* to, std::size_t to_stride, const void* from, std::size_t from_stride, std::size_t width,
          std::size_t n_rows, cudaMemcpyKind kind) {
    Memory& memory = Device::get().memory();
    for (std::size_t i = 0; i < n_rows; ++i) {
        auto* row_to = static_cast<std::byte*>(to) + i * to_stride;
        const auto* row_from = static_cast<const std::byte*>(from) + i * from_stride;
        const auto side = [&](const void* at, bool is_device, const char* what) -> Buffer* {
            const auto address = reinterpret_cast<std::uint64_t>(at);
            Buffer* buffer = memory.find(address);
            const bool is_known = buffer != nullptr && buffer->holds(address, 1);
            if (!is_device && !is_known) return nullptr;
            buffer = &memory.checked(at, width, what);
            if (buffer->is_pinned == is_device)
                throw Fault(fmt::format("{}: memory of the other side", what));
            return buffer;
        };
        Buffer* target = side(row_to, kind != cudaMemcpyDeviceToHost, "the target of a copy");
        Buffer* source = side(row_from, kind != cudaMemcpyHostToDevice, "the source of a copy");
        std::memmove(row_to, row_from, width);
        const auto at = reinterpret_cast<std::uint64_t>(row_to),
                   from_at = reinterpret_cast<std::uint64_t>(row_from);
        if (kind == cudaMemcpyHostToDevice) memory.note_copy(*target, at, width);
        if (kind == cudaMemcpyDeviceToDevice) memory.note_copy(*target, at, width, *source, from_at);
    }
}

}  // namespace
}  // namespace ptx

using ptx::Device;

extern "C" {

// --- nvcc's host code --------------------------------------------------------------------------------------

void** __cudaRegisterFatBinary(void* binary) {
    static void* handle = nullptr;
    handle = binary;
    return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char* stub, char*, const char* name, int, uint3*, uint3*, dim3*,
                            dim3*, int*) {
    ptx::registered()[stub] = name;
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared, CUstream_st* stream) {
    ptx::configurations.push_back({grid, block, shared, stream});
    return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared, void* stream) {
    const ptx::Configuration last = ptx::configurations.back();
    ptx::configurations.pop_back();
    *grid = last.grid;
    *block = last.block;
    *shared = last.shared;
    *static_cast<cudaStream_t*>(stream) = last.stream;
    return cudaSuccess;
}
/// The handle of a kernel is the address of its stub.
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* stub) {
    *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(stub));
    return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                               std::size_t shared, cudaStream_t stream) {
    return ptx::launch(reinterpret_cast<const void*>(kernel), grid, block, arguments, shared, stream);
}
cudaError_t cudaLaunchKernel(const void* stub, dim3 grid, dim3 block, void** arguments, std::size_t shared,
                             cudaStream_t stream) {
    return ptx::launch(stub, grid, block, arguments, shared, stream);
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* stub) {
    *attributes = {};
    const bool is_known = ptx::registered().find(stub) != ptx::registered().end();
    return Device::get().noted(is_known ? cudaSuccess : cudaErrorInvalidDeviceFunction);
}

// --- the device --------------------------------------------------------------------------------------------

cudaError_t cudaGetDeviceCount(int* n) {
    *n = 1;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
    return Device::get().noted(device == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}
cudaError_t cudaDriverGetVersion(int* version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
    const int capability = Device::get().program().capability();
    *value = attribute == cudaDevAttrComputeCapabilityMajor   ? capability / 10
             : attribute == cudaDevAttrComputeCapabilityMinor ? capability % 10
                                                              : 0;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
    *properties = {};
    const int capability = Device::get().program().capability();
    std::snprintf(properties->name, sizeof(properties->name), "emulated PTX of sm_%d", capability);
    properties->major = capability / 10;
    properties->minor = capability % 10;
    properties->totalGlobalMem = Device::get().memory().capacity();
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
    *free = Device::get().memory().free_bytes();
    *total = Device::get().memory().capacity();
    return cudaSuccess;
}
cudaError_t cudaGetLastError() {
    return Device::get().take_last();
}
const char* cudaGetErrorName(cudaError_t error) {
    switch (error) {
        case cudaSuccess:
            return "cudaSuccess";
        case cudaErrorLaunchFailure:
            return "cudaErrorLaunchFailure";
        case cudaErrorMemoryAllocation:
            return "cudaErrorMemoryAllocation";
        case cudaErrorInvalidConfiguration:
            return "cudaErrorInvalidConfiguration";
        case cudaErrorStreamCaptureUnsupported:
            return "cudaErrorStreamCaptureUnsupported";
        case cudaErrorStreamCaptureInvalidated:
            return "cudaErrorStreamCaptureInvalidated";
        default:
            return "cudaError";
    }
}
const char* cudaGetErrorString(cudaError_t error) {
    const std::string& fault = Device::get().fault;
    if (error == cudaErrorLaunchFailure && !fault.empty()) return fault.c_str();
    return cudaGetErrorName(error);
}

// --- memory ------------------------------------------------------------------------------------------------

static cudaError_t allocate(void** data, std::size_t n_bytes, bool is_pinned) {
    if (const cudaError_t error = Device::get().not_in_capture(); error != cudaSuccess) return error;
    *data = Device::get().memory().allocate(n_bytes, is_pinned);
    return Device::get().noted(*data == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}
static cudaError_t release(void* data) {
    Device& device = Device::get();
    if (const cudaError_t error = device.not_in_capture(); error != cudaSuccess) return error;
    device.finish_all();
    if (data == nullptr) return cudaSuccess;
    if (device.memory().release(data)) return cudaSuccess;
    device.run([] { throw ptx::Fault("memory is freed that is not a buffer, or is freed already"); });
    return device.noted(cudaErrorInvalidValue);
}
cudaError_t cudaMalloc(void** data, std::size_t n_bytes) {
    return allocate(data, n_bytes, false);
}
cudaError_t cudaMallocHost(void** data, std::size_t n_bytes) {
    return allocate(data, n_bytes, true);
}
cudaError_t cudaFree(void* data) {
    return release(data);
}
cudaError_t cudaFreeHost(void* data) {
    return release(data);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t n, cudaMemcpyKind kind,
                            cudaStream_t stream) {
    return Device::get().submit(stream, [=] { ptx::copy(to, n, from, n, n, 1, kind); });
}
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_stride, const void* from, std::size_t from_stride,
                              std::size_t width, std::size_t n_rows, cudaMemcpyKind kind,
                              cudaStream_t stream) {
    if (width > to_stride || width > from_stride) return Device::get().noted(cudaErrorInvalidValue);
    return Device::get().submit(stream,
                                [=] { ptx::copy(to, to_stride, from, from_stride, width, n_rows, kind); });
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t n, cudaStream_t stream) {
    return Device::get().submit(stream, [=] {
        ptx::Buffer& buffer = Device::get().memory().checked(to, n, "the target of a memset");
        std::memset(to, value, n);
        Device::get().memory().note_copy(buffer, reinterpret_cast<std::uint64_t>(to), n);
    });
}

// --- streams and events ------------------------------------------------------------------------------------

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
    *stream = new CUstream_st;
    Device::get().streams.push_back(*stream);
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    Device& device = Device::get();
    device.finish(stream);
    std::erase(device.streams, stream);
    delete stream;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    return Device::get().finish(stream);
}
cudaError_t cudaDeviceSynchronize() {
    if (const cudaError_t error = Device::get().not_in_capture(); error != cudaSuccess) return error;
    return Device::get().finish_all();
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    if (Device::get().or_default(stream)->captured != nullptr) return Device::get().not_in_capture();
    const std::shared_ptr<bool> passed = event->passed;
    cudaStream_t other = event->stream;
    return Device::get().submit(stream, [=] {
        if (!*passed) Device::get().finish_until(other, *passed);
    });
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
    *event = new CUevent_st;
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
    return cudaEventCreateWithFlags(event, 0);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    if (!*event->passed) Device::get().finish_until(event->stream, *event->passed);
    delete event;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    const auto passed = std::make_shared<bool>(false);
    event->passed = passed;
    event->stream = Device::get().or_default(stream);
    return Device::get().submit(stream, [=] {
        *passed = true;
        event->seconds = ptx::seconds_now();
    });
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    if (const cudaError_t error = Device::get().not_in_capture(); error != cudaSuccess) return error;
    if (!*event->passed) Device::get().finish_until(event->stream, *event->passed);
    return Device::get().noted(Device::get().fault.empty() ? cudaSuccess : cudaErrorLaunchFailure);
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
    *ms = static_cast<float>(1e3 * (end->seconds - begin->seconds));
    return cudaSuccess;
}

// --- graphs ------------------------------------------------------------------------------------------------

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
    if (stream == nullptr || stream->captured != nullptr) return Device::get().noted(cudaErrorInvalidValue);
    stream->captured = new CUgraph_st;
    stream->capture_failed = false;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
    *graph = nullptr;
    if (stream->captured == nullptr) return Device::get().noted(cudaErrorInvalidValue);
    std::swap(*graph, stream->captured);
    if (!stream->capture_failed) return cudaSuccess;
    delete *graph;
    *graph = nullptr;
    return Device::get().noted(cudaErrorStreamCaptureInvalidated);
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
    *made = new CUgraphExec_st{graph->work};
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
    for (const ptx::Work& work : graph->work)
        if (const cudaError_t error = Device::get().submit(stream, work); error != cudaSuccess) return error;
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    delete graph;
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
    delete graph;
    return cudaSuccess;
}

}  // extern "C"
