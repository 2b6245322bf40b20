#include "engine/bench/bandwidth.h"

#include "engine/base/index.h"
#include "engine/base/large_pages.h"
#include "engine/base/mapped_file.h"
#include "engine/bench/wide_read.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <span>

namespace keyhole {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

class HostRead final : public Bandwidth {
  public:
    explicit HostRead(int n_threads) : pool_(n_threads) {}
    std::string what() const override {
        return fmt::format("bare read of as many bytes by {} thread{}", pool_.n_threads(),
                           pool_.n_threads() == 1 ? "" : "s");
    }
    double measure(std::int64_t n_bytes) override {
        constexpr std::int64_t kLeast = std::int64_t{1} << 20, kMost = std::int64_t{1} << 30;
        constexpr int kPasses = 3;
        const std::size_t n = to_index(std::clamp(n_bytes, kLeast, kMost));
        grow(n);
        double best = 0;
        for (int pass = 0; pass < kPasses; ++pass)
            best = std::max(best, one_pass(pages_.as<std::uint64_t>().first(n / sizeof(std::uint64_t))));
        return best;
    }

  private:
    void grow(std::size_t n_bytes) {
        if (n_bytes <= pages_.size_bytes()) return;
        pages_ = Pages();
        pages_ = Pages(n_bytes);
        std::memset(pages_.data(), 1, pages_.size_bytes());  // unwritten pages share one page of zeros
        move_to_large_pages(pages_.as<const std::byte>());   // the best that the machine can do
    }
    double one_pass(std::span<const std::uint64_t> data) {
        constexpr std::size_t kWords = 32 << 10;
        const std::size_t n_chunks = (data.size() + kWords - 1) / kWords;
        std::vector<std::uint64_t> sums(n_chunks);
        const auto start = Clock::now();
        pool_.parallel_for(static_cast<std::int64_t>(n_chunks), [&](std::int64_t chunk, int) {
            const std::size_t first = to_index(chunk) * kWords;
            sums[to_index(chunk)] = wide_sum(data.subspan(first, std::min(kWords, data.size() - first)));
        });
        const double seconds = seconds_since(start);
        volatile std::uint64_t keep = std::accumulate(sums.begin(), sums.end(), std::uint64_t{0});
        (void)keep;
        return 1e-9 * static_cast<double>(data.size_bytes()) / seconds;
    }

    ThreadPool pool_;
    Pages pages_;
};

class DeviceCopy final : public Bandwidth {
  public:
    DeviceCopy(std::shared_ptr<CudaDevice> device, std::int64_t n_bytes)
        : device_(std::move(device)),
          n_bytes_(n_bytes),
          from_(device_->allocate(n_bytes)),
          to_(device_->allocate(n_bytes)) {}
    std::string what() const override { return "copy on " + device_->identity().name; }
    double measure(std::int64_t) override {
        const auto start = Clock::now();
        device_->copy(to_.get(), from_.get(), n_bytes_);
        return 2e-9 * static_cast<double>(n_bytes_) / seconds_since(start);
    }

  private:
    std::shared_ptr<CudaDevice> device_;
    std::int64_t n_bytes_;
    std::shared_ptr<std::byte> from_, to_;
};

}  // namespace

std::unique_ptr<Bandwidth> host_read(int n_threads) {
    return std::make_unique<HostRead>(n_threads);
}

std::unique_ptr<Bandwidth> device_copy(std::shared_ptr<CudaDevice> device, std::int64_t n_bytes) {
    return std::make_unique<DeviceCopy>(std::move(device), n_bytes);
}

}  // namespace keyhole
