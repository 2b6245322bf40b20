/// Compares two lanes of one run: who holds a token, how much attention and scores differ, where the texts
/// diverge. Only reads the history; used on the window's thread; knows no GL. Lanes are indices into
/// history.lanes().
#pragma once

#include "engine/analysis/heat_mode.h"
#include "engine/policy/kept_set.h"
#include "engine/trace/run_history.h"

#include <optional>
#include <span>
#include <vector>

namespace keyhole {

/// Writes one row of the difference A - B by position. out: at least row + 1 values. Returns false, with out
/// unchanged, if a lane's row is not recorded.
///   attention, score: positions that a lane does not attend to count as 0; NaN where neither attends,
///       kNotFinite where a value is not finite
///   mask: 1 if only A stores the token after the row, -1 only B, 0 both, NaN neither
bool difference_values(const RunHistory& history, int a, int b, int row, int layer, int head, HeatMode mode,
                       std::span<float> out);

/// Counts the tokens of a KV head after a row, by the lanes that store them.
struct HeldBy {
    int both = 0, only_a = 0, only_b = 0, neither = 0;
    double overlap() const { return jaccard(both, both + only_a + only_b); }
    bool operator==(const HeldBy&) const = default;
};
/// Returns the layout of the lane with more KV heads, a's if they have equally many. Comparisons count its KV
/// heads.
const KvLayout& finer_layout(const RunHistory& history, int a, int b);
HeldBy held_by(const RunHistory& history, int a, int b, int kv_head, int row);

/// Returns the token that a lane itself chose for a position, whatever it was fed. -1: inside the prompt or
/// without a record.
int own_choice(const RunHistory& history, int lane, int position);
/// Returns the same choice if the lane was fed another token (lane 0's or a forced one); -1 if it was fed its
/// own.
int choice_passed_over(const RunHistory& history, int lane, int position);
/// Returns the first row at which the lanes read different tokens.
std::optional<int> first_other_token(const RunHistory& history, int a, int b);
/// Returns, for each record, the share of rows so far after which the two lanes chose the same token; NaN
/// before the first row of both.
std::vector<float> agreement_so_far(const RunHistory& history, int a, int b);
/// Returns the first position for which the lanes chose different tokens.
std::optional<int> first_divergence(const RunHistory& history, int a, int b);

}  // namespace keyhole
