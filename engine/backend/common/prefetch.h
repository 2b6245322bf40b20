/// Which weights a product prefetches while it multiplies others. Plain values, for any thread.
#pragma once

#include <cstdint>

namespace keyhole {

/// At column c of row r of a block of rows, the elements first + r * of_row + c * of_column after the block's
/// beginning are prefetched.
struct Ahead {
    std::int64_t first = 0, of_row = 0, of_column = 0;  ///< all zero: nothing new
};

/// The prefetches of a matrix whose rows are multiplied in blocks. Blocks follow each other in memory: they
/// are fetched in the order of their addresses, which memory answers fastest, although the rows of a block
/// are multiplied side by side. Where a block is too long for the first-level cache, each row fetches a
/// little further along itself.
class BlocksAhead {
  public:
    /// rows: of a block. length: of a row, in elements. at_once: elements for which one line is fetched.
    BlocksAhead(std::int64_t rows, std::int64_t length, std::int64_t at_once, std::int64_t element_bytes)
        : rows_(rows) {
        constexpr std::int64_t kCache = 32 << 10, kShort = 12 << 10, kNear = 2048;
        const std::int64_t bytes = rows * length * element_bytes;
        if (bytes > kCache) {
            next_ = {kNear / element_bytes, length, 1};
            return;
        }
        n_blocks_ = bytes <= kShort ? 2 : 1;
        next_ = {n_blocks_ * rows * length, at_once, rows};
    }
    /// Returns what is fetched during the block that begins at `row`. Nothing at the end: what follows
    /// belongs to another thread.
    Ahead after(std::int64_t row, std::int64_t n_rows) const {
        return row + (1 + n_blocks_) * rows_ <= n_rows ? next_ : Ahead{};
    }

  private:
    std::int64_t rows_, n_blocks_ = 1;
    Ahead next_;
};

}  // namespace keyhole
