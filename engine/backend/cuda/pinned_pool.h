/// Pinned host memory for the rows of records, which a device copies to directly. Taking such memory from the
/// system is slow, so that blocks that were given back are given out again. take() on the engine thread;
/// give_back() on any thread, also after the backend was destroyed. Knows no records.
#pragma once

#include "engine/backend/cuda/executor.h"
#include "engine/base/uninitialised_vector.h"

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace keyhole::cuda {

class PinnedPool final : public MemorySource {
  public:
    /// The most that it takes from the system: twice the default budget of recorded rows.
    static constexpr std::size_t kMostBytes = std::size_t{1} << 30;

    explicit PinnedPool(std::shared_ptr<Executor> executor, std::size_t most_bytes = kMostBytes)
        : executor_(std::move(executor)), most_bytes_(most_bytes) {}

    /// Throws Error(no_memory) beyond most_bytes, or where the system has no more.
    void* take(std::size_t n_bytes) override;
    void give_back(void* data, std::size_t n_bytes) noexcept override;
    std::size_t bytes() const;  ///< taken from the system

  private:
    HostBuffer<std::byte> new_piece(std::size_t size);

    std::shared_ptr<Executor> executor_;
    std::size_t most_bytes_;
    mutable std::mutex mutex_;
    std::size_t bytes_ = 0;
    std::map<void*, HostBuffer<std::byte>> pieces_;   // as taken from the system, by address
    std::map<std::size_t, std::vector<void*>> free_;  // blocks of a size
};

}  // namespace keyhole::cuda
