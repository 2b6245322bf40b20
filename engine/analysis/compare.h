/// Two lanes of one run set against each other: who holds a token, by how much attention and scores differ, where the texts part. Pure
/// reading; window thread; knows no GL. Lanes are indices into history.lanes().
#pragma once

#include "engine/analysis/heat_mode.h"
#include "engine/trace/run_history.h"

#include <optional>
#include <span>
#include <vector>

namespace keyhole {

/// One row of the difference A - B by position; out [>= row + 1]. False, out untouched: a lane's row is not recorded.
///   attention, score: what a lane does not attend to counts as 0; NaN where neither attends, kNotFinite where one has a
///       value that is none
///   mask: 1 only A stores the token after the row, -1 only B, 0 both, NaN neither
bool difference_values(const RunHistory& history, int a, int b, int row, int layer, int head, HeatMode mode,
                       std::span<float> out);

/// Tokens of a KV head after a row.
struct HeldBy {
    int both = 0, only_a = 0, only_b = 0, neither = 0;
    /// |A and B| / |A or B|; 1 where both are empty.
    double jaccard() const;
    bool operator==(const HeldBy&) const = default;
};
/// The KV heads of the lane that has more of them, a's where both have as many: what two lanes are compared by.
const KvLayout& finer_layout(const RunHistory& history, int a, int b);
HeldBy held_by(const RunHistory& history, int a, int b, int kv_head, int row);

/// The token that a lane chose for a position itself, whatever it was fed; -1 inside the prompt or where it has no record.
int own_choice(const RunHistory& history, int lane, int position);
/// The same where the lane was fed another token (lane 0's, a forced one, one that was said); -1 where it took its own.
int choice_passed_over(const RunHistory& history, int lane, int position);
/// The first row at which the lanes read different tokens.
std::optional<int> first_other_token(const RunHistory& history, int a, int b);
/// Share of the rows so far after which the two lanes chose the same token, one a record; NaN before the first row of both.
std::vector<float> agreement_so_far(const RunHistory& history, int a, int b);
/// The least position for which the lanes chose different tokens.
std::optional<int> first_divergence(const RunHistory& history, int a, int b);

}  // namespace keyhole
