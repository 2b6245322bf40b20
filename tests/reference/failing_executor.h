/// The host executor with call counts and injected faults: a kernel that does nothing or fails, or the n-th
/// call of a kind that fails as a device would. Detects copies from memory that nobody wrote, as
/// compute-sanitizer's initcheck does.
#pragma once

#include "engine/backend/cuda/executor.h"
#include "engine/base/error.h"

#include <algorithm>
#include <cstdint>
#include <memory>

namespace reference {

class FailingExecutor final : public keyhole::cuda::Executor {
  public:
    /// Which call of each kind fails, counted from 1; 0: none.
    struct Fails {
        int allocation = 0;  ///< device or pinned memory: Error(no_memory)
        bool lasts = false;  ///< and every allocation after it
        int launch = 0;      ///< kernel launch: Error(device)
        int copy = 0;        ///< upload, download or copy on the device
        int wait = 0;        ///< where most device failures show
    };
    FailingExecutor() : host_(keyhole::cuda::make_host_executor()) {}
    explicit FailingExecutor(const Fails& wanted) : FailingExecutor() { fails = wanted; }

    std::string name() const override { return "failing"; }
    keyhole::DeviceIdentity identity() const override { return {name(), "GPU-of-tests", "0.0"}; }
    keyhole::cuda::MemoryUse memory() const override { return host_->memory(); }
    bool has_products(keyhole::cuda::NumberType type) const override {
        return has_typed_products || type == keyhole::cuda::NumberType::f32;
    }
    void* allocate(std::size_t n) override {
        count_allocation();
        ++n_live;
        largest_allocation = std::max(largest_allocation, n);
        void* data = host_->allocate(n);
        std::fill_n(static_cast<std::uint32_t*>(data), n / sizeof(kUnwritten), kUnwritten);
        return data;
    }
    void release(void* data) noexcept override {
        --n_live;
        host_->release(data);
    }
    void* allocate_host(std::size_t n) override {
        count_allocation();
        ++n_live;
        return host_->allocate_host(n);
    }
    void release_host(void* data) noexcept override {
        --n_live;
        host_->release_host(data);
    }
    void upload(void* to, const void* from, std::size_t n) override {
        copied();
        ++n_uploads;
        host_->upload(to, from, n);
    }
    void download(void* to, const void* from, std::size_t n) override {
        copied();
        look_for_unwritten(from, n);
        host_->download(to, from, n);
    }
    void download_rows(void* to, std::size_t a, const void* from, std::size_t b, std::size_t width,
                       std::size_t n) override {
        copied();
        for (std::size_t row = 0; row < n; ++row)
            look_for_unwritten(static_cast<const std::byte*>(from) + row * b, width);
        host_->download_rows(to, a, from, b, width, n);
    }
    void download_async(void* to, const void* from, std::size_t n) override {
        copied();
        look_for_unwritten(from, n);
        host_->download_async(to, from, n);
    }
    void wait_for_copies() override {
        host_->wait_for_copies();
        count(fails.wait, n_waits, keyhole::ErrorCode::device, "an illegal address");
    }
    void copy(void* to, const void* from, std::size_t n) override {
        copied();
        look_for_unwritten(from, n);
        host_->copy(to, from, n);
    }
    void clear(void* to, std::size_t n) override { host_->clear(to, n); }
    void wait() override { count(fails.wait, n_waits, keyhole::ErrorCode::device, "an illegal address"); }

    void time_launches(bool on) override { host_->time_launches(on); }
    std::vector<double> take_times() override { return host_->take_times(); }

    Fails fails;
    int n_allocations = 0, n_launches = 0, n_copies = 0, n_waits = 0;
    int n_products = 0;                  ///< launches that cuBLAS would execute
    int n_live = 0;                      ///< blocks not yet released
    std::size_t largest_allocation = 0;  ///< bytes of device memory
    int n_unwritten = 0;                 ///< copies that read a word that nobody wrote
    static inline int n_uploads = 0;     ///< uploads by all executors of the process
    int idle_kernel = -1;                ///< this kernel does nothing
    int bad_kernel = -1;                 ///< this kernel fails
    bool has_typed_products = true;
    bool graphs_work = true;

  protected:
    void run(std::span<const keyhole::cuda::Launch> launches) override {
        for (const keyhole::cuda::Launch& launch : launches) {
            count(fails.launch, n_launches, keyhole::ErrorCode::device, "a launch");
            n_products += launch.kernel == keyhole::cuda::Launch::kProduct;
            if (launch.kernel == bad_kernel) keyhole::fail(keyhole::ErrorCode::device, "an illegal address");
            if (launch.kernel != idle_kernel) host_->launch(launch);
        }
    }
    void run_graph(std::span<const keyhole::cuda::Launch> launches, int, bool is_new) override {
        run(launches);
        if (!is_new) note_graph(graphs_work);
    }

  private:
    static void count(int fails_at, int& n, keyhole::ErrorCode code, const char* what) {
        if (++n == fails_at) keyhole::fail(code, "{}", what);
    }
    void count_allocation() {
        if (fails.lasts && n_allocations >= fails.allocation) --n_allocations;
        count(fails.allocation, n_allocations, keyhole::ErrorCode::no_memory, "no room");
    }
    void look_for_unwritten(const void* from, std::size_t n) {
        const auto* words = static_cast<const std::uint32_t*>(from);
        n_unwritten +=
            std::find(words, words + n / sizeof(kUnwritten), kUnwritten) != words + n / sizeof(kUnwritten);
    }
    static constexpr std::uint32_t kUnwritten = 0xffe1ffe1;  // NaN in all types
    void copied() { count(fails.copy, n_copies, keyhole::ErrorCode::device, "a copy"); }

    std::unique_ptr<keyhole::cuda::Executor> host_;
};

}  // namespace reference
