/// What the cells of an atlas' blocks are in the mask: how many of them are gone, and whether a row saw a token for the last time there.
/// Follows a run row by row, all KV heads of a lane. Window thread; knows neither GL nor what draws it.
#pragma once

#include "engine/trace/run_history.h"

#include <cstdint>
#include <span>
#include <vector>

namespace keyhole {

class MaskSummary {
  public:
    /// Rows that are new join; another lane, run, side or factor starts over. side: blocks, a power of two, of factor x factor cells,
    /// which hold the run.
    void update(const RunHistory& history, int lane, int side, int factor);

    int side() const { return side_; }
    int n_heads() const { return n_heads_; }
    int n_levels() const { return static_cast<int>(levels_.size()); }
    /// Blocks of 2^level blocks: [n_heads, side >> level rows, side >> level columns], each 2 * (cells that are gone) + (1 where a
    /// row saw a token for the last time). A cell (row, position) is gone where row > evicted_at.
    std::span<const std::int32_t> level(int level) const { return levels_[static_cast<std::size_t>(level)]; }

    /// Rows of level 0 that changed since take_changes(); all: start over with the texture.
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
    int last_row_ = -1;  // that has joined
    std::vector<std::vector<std::int32_t>> levels_;
    std::vector<std::int32_t>
        gone_;  // [n_heads, side] positions of a column of blocks that are gone from the next row on
    Changes changes_;

    void start_over(const RunHistory& history, int lane, int side, int factor);
    bool add_row(const RunHistory& history, int lane, int row);
    void reduce(int first, int last);
    std::size_t at(int head, int x, int y) const {
        const auto n = static_cast<std::size_t>(side_);
        return (static_cast<std::size_t>(head) * n + static_cast<std::size_t>(y)) * n +
               static_cast<std::size_t>(x);
    }
};

}  // namespace keyhole
