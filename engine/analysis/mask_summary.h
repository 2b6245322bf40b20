/// Summarises the mask for an atlas by blocks: how many cells are evicted, and whether a token was seen for
/// the last time there. Follows all KV heads of a lane row by row. Used on the window's thread; knows neither
/// GL nor what draws it.
#pragma once

#include "engine/base/index.h"
#include "engine/trace/run_history.h"

#include <cstdint>
#include <span>
#include <vector>

namespace keyhole {

class MaskSummary {
  public:
    /// Adds the rows that are new. Another lane, run, side or factor starts over. side: in blocks, a power of
    /// two; a block has factor x factor cells. side * factor must cover the run.
    void update(const RunHistory& history, int lane, int side, int factor);

    int side() const { return side_; }
    int n_heads() const { return n_heads_; }
    int n_levels() const { return static_cast<int>(levels_.size()); }
    /// Returns blocks of 2^level x 2^level blocks: [n_heads, side >> level rows, side >> level columns]. Each
    /// value is 2 * (evicted cells) + (1 if a row saw a token for the last time). A cell (row, position) is
    /// evicted if row > evicted_at.
    std::span<const std::int32_t> level(int level) const { return levels_[to_index(level)]; }

    /// The rows of level 0 that changed since the last take_changes(). all: upload the whole texture again.
    struct Changes {
        bool all = false;
        int first = 0;
        int last = -1;  ///< inclusive; below first: none
    };
    Changes take_changes();

  private:
    int side_ = 0, factor_ = 0, n_heads_ = 0;
    std::uint64_t generation_ = 0;
    int lane_ = -1;      // id
    int last_row_ = -1;  // last row added
    std::vector<std::vector<std::int32_t>> levels_;
    // [n_heads, side] positions in a column of blocks that are evicted as of the next row
    std::vector<std::int32_t> gone_;
    Changes changes_;

    void start_over(const RunHistory& history, int lane, int side, int factor);
    bool add_row(const RunHistory& history, int lane, int row);
    void reduce(int first, int last);
    std::size_t at(int head, int x, int y) const {
        const auto n = to_index(side_);
        return (to_index(head) * n + to_index(y)) * n + to_index(x);
    }
};

}  // namespace keyhole
