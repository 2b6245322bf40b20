#include "engine/backend/cuda/executor.h"

#include "engine/base/error.h"
#include "engine/base/index.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>

namespace keyhole::cuda {

void Executor::begin_list() {
    list_.clear();
    listing_ = true;
}

void Executor::end_list() {
    listing_ = false;
    const bool is_new = list_ != last_;
    n_graphs_ += is_new;
    run_list(list_, is_new);
    if (is_new) std::swap(last_, list_);
}

namespace {

using RunOnHost = void (*)(const void* arguments, Grid grid, int n_threads, unsigned shuffle);

template <class Kernel>
void run_one(const void* arguments, Grid grid, int n_threads, unsigned shuffle) {
    Kernel kernel;
    std::memcpy(static_cast<void*>(&kernel), arguments, sizeof(kernel));
    run_on_host(kernel, grid, n_threads, shuffle);
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

/// Runs everything at once, so copies and kernels see the same data as in a stream.
class HostExecutor final : public Executor {
  public:
    explicit HostExecutor(unsigned shuffle) : shuffle_(shuffle) {}

    std::string name() const override { return "host, thread by thread"; }
    MemoryUse memory() const override { return {std::int64_t{1} << 40, std::int64_t{1} << 40}; }

    void* allocate(std::size_t n_bytes) override {
        void* data = std::aligned_alloc(256, (n_bytes + 255) / 256 * 256);
        if (data == nullptr) fail(ErrorCode::no_memory, "there is no room for {} bytes", n_bytes);
        std::memset(data, 0xff, n_bytes);
        return data;
    }
    void release(void* data) noexcept override { std::free(data); }
    void* allocate_host(std::size_t n_bytes) override { return allocate(n_bytes); }
    void release_host(void* data) noexcept override { std::free(data); }

    void upload(void* to, const void* from, std::size_t n) override { copy(to, from, n); }
    void download(void* to, const void* from, std::size_t n) override { copy(to, from, n); }
    void download_rows(void* to, std::size_t to_stride, const void* from, std::size_t from_stride,
                       std::size_t width, std::size_t n_rows) override {
        for (std::size_t i = 0; i < n_rows; ++i)
            copy(static_cast<std::byte*>(to) + i * to_stride,
                 static_cast<const std::byte*>(from) + i * from_stride, width);
    }
    void copy(void* to, const void* from, std::size_t n) override {
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
                                                        shuffle_);
            if (!times_.empty())
                times_[to_index(launch.kernel)] +=
                    std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        }
    }
    void run_list(std::span<const Launch> launches, bool) override { run(launches); }

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
        for (std::int64_t i = 0; i < p.n_batch; ++i) {
            const T* a = static_cast<const T*>(p.a) + i * p.a_batch;
            const T* b = static_cast<const T*>(p.b) + i * p.b_batch;
            float* c = p.c + i * p.c_batch;
            for (std::int64_t row = 0; row < p.m; ++row)
                for (std::int64_t column = 0; column < p.n; ++column) {
                    float sum = 0;
                    for (std::int64_t t = 0; t < p.k; ++t)
                        sum +=
                            widen(a[row * p.a_stride + t]) *
                            widen(b[p.b_transposed != 0 ? column * p.b_stride + t : t * p.b_stride + column]);
                    c[row * p.c_stride + column] = p.alpha * sum;
                }
        }
    }

    unsigned shuffle_;
    std::vector<double> times_;
};

}  // namespace

std::unique_ptr<Executor> make_host_executor(unsigned shuffle) {
    return std::make_unique<HostExecutor>(shuffle);
}

}  // namespace keyhole::cuda
