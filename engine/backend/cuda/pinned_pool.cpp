#include "engine/backend/cuda/pinned_pool.h"

#include "engine/base/error.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace keyhole::cuda {
namespace {

constexpr std::size_t kPiece = std::size_t{1} << 20;  ///< small blocks are cut from pieces of this size

/// Returns the size of the block that holds n bytes, at most an eighth more: rows grow from token to token,
/// and neighbours shall take the same blocks.
std::size_t block_size(std::size_t n) {
    const std::size_t step = std::max<std::size_t>(64, std::bit_floor(std::max<std::size_t>(n, 1)) / 8);
    return (std::max<std::size_t>(n, 1) + step - 1) / step * step;
}

}  // namespace

void* PinnedPool::take(std::size_t n_bytes) {
    const std::size_t size = block_size(n_bytes);
    const std::lock_guard lock(mutex_);
    std::vector<void*>& known = free_[size];
    if (known.empty()) {
        HostBuffer<std::byte> piece = new_piece(size);
        bytes_ += piece.size();
        std::byte* const data = piece.data();
        for (std::size_t n = piece.size() / size; n-- > 0;) known.push_back(data + n * size);
        pieces_.emplace(data, std::move(piece));
    }
    void* const data = known.back();
    known.pop_back();
    return data;
}

/// Makes room by freeing large blocks that nobody uses, since rows have grown past their size.
HostBuffer<std::byte> PinnedPool::new_piece(std::size_t size) {
    const std::size_t n_bytes = size > kPiece / 4 ? size : kPiece / size * size;
    for (auto& [of, unused] : free_) {
        if (of <= kPiece / 4) continue;
        while (!unused.empty() && bytes_ + n_bytes > most_bytes_) {
            pieces_.erase(unused.back());
            unused.pop_back();
            bytes_ -= of;
        }
    }
    if (bytes_ + n_bytes > most_bytes_)
        fail(ErrorCode::no_memory, "recorded rows hold all of {:.0f} MB of pinned memory",
             static_cast<double>(most_bytes_) / 1e6);
    return {executor_, n_bytes};
}

void PinnedPool::give_back(void* data, std::size_t n_bytes) noexcept {
    const std::lock_guard lock(mutex_);
    free_[block_size(n_bytes)].push_back(data);
}

std::size_t PinnedPool::bytes() const {
    const std::lock_guard lock(mutex_);
    return bytes_;
}

}  // namespace keyhole::cuda
