/// Which stored tokens competed at the selection after a row, from records. Any thread that owns the history;
/// knows no panel.
#pragma once

#include "engine/policy/selection.h"
#include "engine/trace/run_history.h"

#include <vector>

namespace keyhole {

/// Why a stored token cannot leave.
enum class Standing { competes, pinned, first, newest, protected_ };

/// Returns the standing of each token that a KV head holds in a row, in text order; empty where the lane has
/// no record of it. A `protect` that names what records do not hold, such as knorm, protects none here.
std::vector<Standing> standings(const RunHistory& history, int lane, int kv_head, int row);
/// Returns whether all heads of a unit hold the same tokens in a row.
bool hold_the_same(const RunHistory& history, int lane, const Unit& unit, int row);
/// Returns whether records hold all that the policy's `protect` names.
bool knows_protected(const ResolvedPolicy& policy);

}  // namespace keyhole
