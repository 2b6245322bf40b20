/// What a lane's newest selection met, from records: scores that are NaN, and equal ones at the cut. Any
/// thread that owns the history; knows no panel.
#pragma once

#include "engine/trace/run_history.h"

#include <optional>
#include <string>

namespace keyhole {

struct SelectionCounts {
    int row = -1;                      ///< after which tokens left
    int n_heads = 0;                   ///< KV heads that lost tokens
    int n_ranked = 0;                  ///< tokens that competed in them
    int n_nan = 0, n_nan_heads = 0;    ///< of these, with NaN as their score
    int first_nan_head = -1;           ///< index of the KV head
    int n_tied = 0, n_tied_heads = 0;  ///< with one score, of which some stayed and some left
    bool operator==(const SelectionCounts&) const = default;
};

/// Returns the counts of the lane's newest selection up to a row; nullopt: it has none, or its scores are not
/// recorded. lane: index into history.lanes().
std::optional<SelectionCounts> last_selection(const RunHistory& history, int lane, int row);

/// Returns a sentence on NaN and ties; empty where there are none.
std::string selection_words(const SelectionCounts& counts, const KvLayout& layout);

}  // namespace keyhole
