/// Scores of a few tokens over the steps, and which tokens tell most at first sight. One thread; knows
/// neither a window nor how curves are drawn.
#pragma once

#include "engine/trace/run_history.h"

#include <cstdint>
#include <tuple>
#include <vector>

namespace keyhole {

/// Scores of positions in a KV head, one value a record; NaN: none. update() reads only the new rows.
struct ScoreCurves {
    std::vector<float> threshold, tau;
    std::vector<std::vector<float>> scores;  ///< [index into the requested positions][record]
    /// of_lane: into history.lanes().
    void update(const RunHistory& history, int of_lane, int of_head, const std::vector<int>& of);

  private:
    std::tuple<std::uint64_t, int, int, std::vector<int>> key_;
    std::size_t n_rows_ = 0;
};

/// Returns the stored word with the highest score after a row, and the evicted one with the highest score,
/// both behind the first four tokens (sinks outscore all others). A word is a token that begins one, or a
/// number; where none competes, any token is taken. Empty if the row has no scores.
std::vector<int> telling_positions(const RunHistory& history, int lane, int kv_head, int row);

}  // namespace keyhole
