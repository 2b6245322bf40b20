/// Owns the backend's memory and runs its kernels: a CUDA device, or the host,
/// thread by thread, for tests and for the CPU half of `selftest`. Engine thread only. Knows no CUDA.
///
/// Calls run in order, one after the other, and complete at the latest when the next wait() returns
/// (download_async() apart). Host memory passed to an upload or a download must stay valid until then.
/// Device failures throw Error(device), some of them only in wait().
#pragma once

#include "engine/backend/cuda/block.h"
#include "engine/backend/cuda/kernel_list.h"
#include "engine/base/device_use.h"
#include "engine/base/device_verdict.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace keyhole::cuda {

/// n_batch products, row-major: c [m, n] = alpha * a [m, k] * b, where b is [k, n] or, transposed, [n, k].
/// Sums and c are float; a and b have one type.
struct MatrixProduct {
    const void* a = nullptr;
    const void* b = nullptr;
    float* c = nullptr;
    std::int64_t m = 0, n = 0, k = 0;
    std::int64_t a_stride = 0, b_stride = 0, c_stride = 0;  ///< elements from row to row
    std::int64_t a_batch = 0, b_batch = 0, c_batch = 0;     ///< elements from product to product
    std::int32_t n_batch = 1;
    std::int32_t b_transposed = 0;
    float alpha = 1;
    NumberType type = NumberType::f32;
};

/// A kernel or a product with its arguments.
struct Launch {
    static constexpr int kProduct = Kernels::kSize;  ///< as `kernel`: arguments are a MatrixProduct
    static constexpr std::size_t kRoom = Kernels::kLargest > sizeof(MatrixProduct) ? Kernels::kLargest
                                                                                   : sizeof(MatrixProduct);
    int kernel = 0;  ///< index in Kernels
    Grid grid;
    int n_threads = 0;
    alignas(16) std::byte arguments[kRoom] = {};

    bool operator==(const Launch& other) const {
        return kernel == other.kernel && grid.x == other.grid.x && grid.y == other.grid.y &&
               grid.z == other.grid.z && n_threads == other.n_threads &&
               std::memcmp(arguments, other.arguments, sizeof(arguments)) == 0;
    }
};

using keyhole::LaunchCounts;
using keyhole::MemoryUse;

class Executor {
  public:
    virtual ~Executor() = default;
    virtual std::string name() const = 0;  ///< "NVIDIA H200"
    virtual DeviceIdentity identity() const { return {name(), "", ""}; }
    virtual MemoryUse memory() const = 0;  ///< as the driver reports it
    /// True when multiply() takes factors of the type. Floats always work.
    virtual bool has_products(NumberType) const { return true; }

    /// Returns memory with undefined contents. Throws Error(no_memory) with the requested and the free bytes.
    virtual void* allocate(std::size_t n_bytes) = 0;
    /// Waits for pending uses, then frees the memory.
    virtual void release(void* data) noexcept = 0;
    /// Returns pinned host memory, which copies use directly.
    virtual void* allocate_host(std::size_t n_bytes) = 0;
    virtual void release_host(void* data) noexcept = 0;

    virtual void upload(void* to, const void* from, std::size_t n_bytes) = 0;
    virtual void download(void* to, const void* from, std::size_t n_bytes) = 0;
    /// Copies n_rows rows of `width` bytes; rows start from_stride bytes apart in `from` and to_stride bytes
    /// apart in `to`.
    virtual void download_rows(void* to, std::size_t to_stride, const void* from, std::size_t from_stride,
                               std::size_t width, std::size_t n_rows) = 0;
    /// Copies to pinned host memory on a second stream, once all work before this call is done. Later work
    /// may run meanwhile and must leave `from` alone. Complete when wait_for_copies() returns; wait() does
    /// not wait for it.
    virtual void download_async(void* to, const void* from, std::size_t n_bytes) = 0;
    virtual void wait_for_copies() = 0;
    virtual void copy(void* to, const void* from, std::size_t n_bytes) = 0;
    virtual void clear(void* to, std::size_t n_bytes) = 0;
    virtual void wait() = 0;

    template <class Kernel>
    void launch(const Kernel& kernel, Grid grid, int n_threads) {
        static_assert(kKernelIndex<Kernel> >= 0, "missing in Kernels");
        if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
        Launch launch;
        launch.kernel = kKernelIndex<Kernel>;
        launch.grid = grid;
        launch.n_threads = n_threads;
        std::memcpy(launch.arguments, &kernel, sizeof(kernel));
        this->launch(launch);
    }
    void multiply(const MatrixProduct& product) {
        Launch launch;
        launch.kernel = Launch::kProduct;
        std::memcpy(launch.arguments, &product, sizeof(product));
        this->launch(launch);
    }
    void launch(const Launch& launch) {
        ++counts_.launches;
        if (captures_)
            captured_.push_back(launch);
        else
            run({&launch, 1});
    }

    /// Captures the launches between begin_graph() and end_graph(), which runs them together. Where they are
    /// equal to those of one of the last kKeptGraphs captures, the graph of that one runs again, so sizes
    /// that change from row to row must lie in device memory.
    static constexpr int kKeptGraphs = 8;
    void begin_graph();
    void end_graph();
    /// Ends a capture without a run, for callers that failed halfway.
    void drop_graph() noexcept { captures_ = false; }
    const LaunchCounts& counts() const { return counts_; }

    /// Starts or stops timing every launch and product. Meanwhile no graphs run.
    virtual void time_launches(bool on) = 0;
    /// Returns seconds since the last call, by kernel; entry [Kernels::kSize] is the products. Waits.
    virtual std::vector<double> take_times() = 0;

  protected:
    virtual void run(std::span<const Launch> launches) = 0;
    /// slot: names the capture among the kept ones, 0 to kKeptGraphs - 1. is_new: it takes the place of the
    /// one that had this slot. Calls note_graph() where it runs, or fails to make, a graph.
    virtual void run_graph(std::span<const Launch> launches, int slot, bool is_new) = 0;
    void note_graph(bool was_made) { ++(was_made ? counts_.graphs : counts_.failed_graphs); }

  private:
    struct KeptGraph {
        std::vector<Launch> launches;
        std::int64_t last_use = 0;
    };
    bool captures_ = false;
    LaunchCounts counts_;
    std::vector<Launch> captured_;
    std::array<KeptGraph, kKeptGraphs> kept_graphs_;
};

/// The order in which a host executor runs the blocks of a grid and the threads of a phase. On a device there
/// is none, so results must not depend on it. in_turns: shuffled, with several blocks under way at a time.
enum class RunOrder { forward, backward, shuffled, in_turns };

struct HostOrder {
    RunOrder order = RunOrder::shuffled;
    unsigned seed = 1;           ///< of a shuffled order
    std::uint8_t poison = 0xff;  ///< fills new memory, and shared memory and locals before each block
    int without = -1;  ///< the phase after which kernels have no barrier; -1: all barriers are there
};

/// Returns an executor on the host, for tests: kernels run thread by thread in a shuffled order of that seed;
/// memory starts as NaN patterns.
std::unique_ptr<Executor> make_host_executor(unsigned seed = 1);
std::unique_ptr<Executor> make_host_executor(const HostOrder& order);

/// Returns an executor that does nothing, for measuring the host's part of a step: device memory has
/// addresses and no contents, downloads give zeros. So nothing is ever evicted.
std::unique_ptr<Executor> make_idle_executor();

enum class Place { device, host };

/// Memory of an executor, [size()] of T, contents undefined: device memory, or pinned host memory. Move only.
template <class T, Place kPlace>
class Memory {
  public:
    Memory() = default;
    Memory(std::shared_ptr<Executor> executor, std::size_t n)
        : executor_(std::move(executor)), data_(n > 0 ? allocate(n * sizeof(T)) : nullptr), size_(n) {}
    ~Memory() {
        if (data_ == nullptr) return;
        if constexpr (kPlace == Place::device)
            executor_->release(data_);
        else
            executor_->release_host(data_);
    }
    Memory(Memory&& other) noexcept { swap(other); }
    Memory& operator=(Memory&& other) noexcept {
        Memory(std::move(other)).swap(*this);
        return *this;
    }

    T* data() const { return data_; }
    std::size_t size() const { return size_; }
    std::size_t size_bytes() const { return size_ * sizeof(T); }
    T& operator[](std::size_t i) const requires(kPlace == Place::host) { return data_[i]; }

    /// Makes room for at least n; loses the contents when it grows.
    void grow(const std::shared_ptr<Executor>& executor, std::size_t n) {
        if (n <= size_) return;
        *this = Memory();  // frees the old one first: both may not fit
        *this = Memory(executor, n);
    }

  private:
    T* allocate(std::size_t n_bytes) {
        return static_cast<T*>(kPlace == Place::device ? executor_->allocate(n_bytes)
                                                       : executor_->allocate_host(n_bytes));
    }
    void swap(Memory& other) noexcept {
        std::swap(executor_, other.executor_);
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
    }

    std::shared_ptr<Executor> executor_;
    T* data_ = nullptr;
    std::size_t size_ = 0;
};

template <class T>
using Buffer = Memory<T, Place::device>;
template <class T>
using HostBuffer = Memory<T, Place::host>;

/// Returns device memory with these values; waits until they are there.
template <class T>
Buffer<T> uploaded(const std::shared_ptr<Executor>& executor, const std::vector<T>& from) {
    Buffer<T> out(executor, from.size());
    if (!from.empty()) executor->upload(out.data(), from.data(), out.size_bytes());
    executor->wait();
    return out;
}

}  // namespace keyhole::cuda
