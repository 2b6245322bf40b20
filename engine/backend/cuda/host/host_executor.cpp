#include "engine/backend/cuda/executor.h"

#include "engine/base/error.h"
#include "engine/base/index.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <unordered_map>

namespace keyhole::cuda {

void Executor::begin_graph() {
    captured_.clear();
    captures_ = true;
}

void Executor::end_graph() {
    captures_ = false;
    ++counts_.captures;
    std::size_t slot = 0;
    bool is_new = true;
    for (std::size_t i = 0; i < kept_graphs_.size() && is_new; ++i)
        if (kept_graphs_[i].last_use > 0 && kept_graphs_[i].launches == captured_) {
            slot = i;
            is_new = false;
        }
    if (is_new)  // takes the place of the capture that has not been used for longest
        for (std::size_t i = 1; i < kept_graphs_.size(); ++i)
            if (kept_graphs_[i].last_use < kept_graphs_[slot].last_use) slot = i;
    counts_.new_graphs += is_new;
    KeptGraph& graph = kept_graphs_[slot];
    if (is_new) graph.last_use = 0;  // should it fail, the slot holds none
    run_graph(captured_, static_cast<int>(slot), is_new);
    graph.last_use = counts_.captures;
    if (is_new) std::swap(graph.launches, captured_);
}

namespace {

using RunOnHost = void (*)(const void* arguments, Grid grid, int n_threads, const HostOrder& order);

template <class Kernel>
void run_one(const void* arguments, Grid grid, int n_threads, const HostOrder& order) {
    Kernel kernel;
    std::memcpy(static_cast<void*>(&kernel), arguments, sizeof(kernel));
    run_on_host(kernel, grid, n_threads, static_cast<int>(order.order), order.seed, order.poison,
                order.without);
}

const std::array<RunOnHost, Kernels::kSize>& host_kernels() {
    static const auto table = [] {
        std::array<RunOnHost, Kernels::kSize> out{};
        std::size_t i = 0;
        Kernels::for_each([&]<class Kernel>() { out[i++] = &run_one<Kernel>; });
        return out;
    }();
    return table;
}

/// Runs everything at once, so copies and kernels see the same data as in a stream. Asynchronous copies run
/// as late as they may.
class HostExecutor final : public Executor {
  public:
    explicit HostExecutor(const HostOrder& order) : order_(order) {}

    std::string name() const override { return "host, thread by thread"; }
    MemoryUse memory() const override { return {kAll - used_, kAll}; }

    void* allocate(std::size_t n_bytes) override {
        void* data = allocate_host(n_bytes);
        sizes_[data] = static_cast<std::int64_t>(n_bytes);
        used_ += sizes_[data];
        return data;
    }
    void release(void* data) noexcept override {
        wait_for_copies();
        const auto known = sizes_.find(data);
        used_ -= known->second;
        sizes_.erase(known);
        std::free(data);
    }
    void* allocate_host(std::size_t n_bytes) override {
        void* data = std::aligned_alloc(256, (n_bytes + 255) / 256 * 256);
        if (data == nullptr) fail(ErrorCode::no_memory, "there is no room for {} bytes", n_bytes);
        std::memset(data, order_.poison, n_bytes);
        return data;
    }
    void release_host(void* data) noexcept override {
        wait_for_copies();
        std::free(data);
    }

    void upload(void* to, const void* from, std::size_t n) override { copy(to, from, n); }
    void download(void* to, const void* from, std::size_t n) override { copy(to, from, n); }
    void download_rows(void* to, std::size_t to_stride, const void* from, std::size_t from_stride,
                       std::size_t width, std::size_t n_rows) override {
        for (std::size_t i = 0; i < n_rows; ++i)
            copy(static_cast<std::byte*>(to) + i * to_stride,
                 static_cast<const std::byte*>(from) + i * from_stride, width);
    }
    void download_async(void* to, const void* from, std::size_t n) override {
        if (n > 0) std::memset(to, order_.poison, n);  // for those who read too early
        copies_.push_back({to, from, n});
    }
    void wait_for_copies() noexcept override {
        for (const Copy& late : copies_) copy(late.to, late.from, late.n_bytes);
        copies_.clear();
    }
    void copy(void* to, const void* from, std::size_t n) noexcept override {
        if (n > 0) std::memcpy(to, from, n);
    }
    void clear(void* to, std::size_t n) override {
        if (n > 0) std::memset(to, 0, n);
    }
    void wait() override {}

    void time_launches(bool on) override { times_.assign(on ? Kernels::kSize + 1 : 0, 0); }
    std::vector<double> take_times() override {
        return std::exchange(times_, std::vector<double>(times_.size(), 0));
    }

  protected:
    void run(std::span<const Launch> launches) override {
        for (const Launch& launch : launches) {
            const auto start = std::chrono::steady_clock::now();
            if (launch.kernel == Launch::kProduct)
                run_product(launch);
            else
                host_kernels()[to_index(launch.kernel)](launch.arguments, launch.grid, launch.n_threads,
                                                        order_);
            if (!times_.empty())
                times_[to_index(launch.kernel)] +=
                    std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        }
    }
    /// Counts graphs as a device makes them.
    void run_graph(std::span<const Launch> launches, int, bool is_new) override {
        run(launches);
        if (!is_new && times_.empty()) note_graph(true);
    }

  private:
    static void run_product(const Launch& launch) {
        MatrixProduct p;
        std::memcpy(&p, launch.arguments, sizeof(p));
        if (p.type == NumberType::f16)
            multiply_all<Fp16>(p);
        else if (p.type == NumberType::bf16)
            multiply_all<Bf16>(p);
        else
            multiply_all<float>(p);
    }
    template <class T>
    static void multiply_all(const MatrixProduct& p) {
        std::vector<float> a_row(to_index(p.k)), b_columns(to_index(p.n * p.k));  // widened once
        for (std::int64_t i = 0; i < p.n_batch; ++i) {
            const T* a = static_cast<const T*>(p.a) + i * p.a_batch;
            const T* b = static_cast<const T*>(p.b) + i * p.b_batch;
            float* c = p.c + i * p.c_batch;
            for (std::int64_t column = 0; column < p.n; ++column)
                for (std::int64_t t = 0; t < p.k; ++t)
                    b_columns[to_index(column * p.k + t)] =
                        widen(b[p.b_transposed != 0 ? column * p.b_stride + t : t * p.b_stride + column]);
            for (std::int64_t row = 0; row < p.m; ++row) {
                for (std::int64_t t = 0; t < p.k; ++t) a_row[to_index(t)] = widen(a[row * p.a_stride + t]);
                for (std::int64_t column = 0; column < p.n; ++column) {
                    const float* b_column = b_columns.data() + column * p.k;
                    float sum = 0;
                    for (std::int64_t t = 0; t < p.k; ++t) sum += a_row[to_index(t)] * b_column[t];
                    c[row * p.c_stride + column] = p.alpha * sum;
                }
            }
        }
    }

    static constexpr std::int64_t kAll = std::int64_t{1} << 40;
    HostOrder order_;
    std::unordered_map<void*, std::int64_t> sizes_;
    std::int64_t used_ = 0;
    std::vector<double> times_;
    struct Copy {
        void* to;
        const void* from;
        std::size_t n_bytes;
    };
    std::vector<Copy> copies_;
};

/// Does nothing. Addresses of device memory come from a range that is reserved and never touched.
class IdleExecutor final : public Executor {
  public:
    IdleExecutor() {
        void* range = ::mmap(nullptr, kRange, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (range == MAP_FAILED)
            fail(ErrorCode::no_memory, "no {} GB of addresses for an executor that does nothing",
                 kRange >> 30);
        range_ = static_cast<std::byte*>(range);
    }
    ~IdleExecutor() override { ::munmap(range_, kRange); }

    std::string name() const override { return "nothing: the host's part alone"; }
    MemoryUse memory() const override {
        return {static_cast<std::int64_t>(kRange - used_), static_cast<std::int64_t>(kRange)};
    }
    // Addresses are not given twice: a long bench stays far below the range.
    void* allocate(std::size_t n_bytes) override {
        const std::size_t size = (n_bytes + 255) / 256 * 256;
        if (size > kRange - used_) fail(ErrorCode::no_memory, "no addresses for {} bytes more", n_bytes);
        return range_ + std::exchange(used_, used_ + size);
    }
    void release(void*) noexcept override {}
    void* allocate_host(std::size_t n_bytes) override {
        void* data = std::calloc(n_bytes, 1);
        if (data == nullptr) fail(ErrorCode::no_memory, "there is no room for {} bytes", n_bytes);
        return data;
    }
    void release_host(void* data) noexcept override { std::free(data); }

    void upload(void*, const void*, std::size_t) override {}
    void download(void*, const void*, std::size_t) override {}
    void download_rows(void*, std::size_t, const void*, std::size_t, std::size_t, std::size_t) override {}
    void download_async(void*, const void*, std::size_t) override {}
    void wait_for_copies() override {}
    void copy(void*, const void*, std::size_t) override {}
    void clear(void*, std::size_t) override {}
    void wait() override {}
    void time_launches(bool) override {}
    std::vector<double> take_times() override { return std::vector<double>(Kernels::kSize + 1, 0.0); }

  protected:
    void run(std::span<const Launch>) override {}
    void run_graph(std::span<const Launch>, int, bool) override {}

  private:
    static constexpr std::size_t kRange = std::size_t{1} << 42;
    std::byte* range_;
    std::size_t used_ = 0;
};

}  // namespace

std::unique_ptr<Executor> make_host_executor(unsigned seed) {
    return make_host_executor(HostOrder{RunOrder::shuffled, seed, 0xff});
}

std::unique_ptr<Executor> make_host_executor(const HostOrder& order) {
    return std::make_unique<HostExecutor>(order);
}

std::unique_ptr<Executor> make_idle_executor() {
    return std::make_unique<IdleExecutor>();
}

}  // namespace keyhole::cuda
