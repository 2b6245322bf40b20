/// run.json: what a run was and its scalars per step, as JSON text. Pure; any thread.
#pragma once

#include "engine/trace/run_history.h"

#include <string>
#include <vector>

namespace keyhole {

/// version, model {path, hash}, prompt, prompt_tokens, first_row, seed, backend, commands, branch, branches, kv_heads, metrics (name: equation), lanes.
/// `commands` are those of the shown branch, of which `branch` is the last stretch; `branches` are the stretches that rewinding cut
/// off: {id, parent, from_row, last_row, commands}, where a parent that is not listed is part of the shown branch. Rows that a lane
/// missed are null in its `steps`; NaN is null; bytes that are no UTF-8 become U+FFFD.
std::string make_run_json(const RunHistory& history, int first_row);

/// The commands that the records tell of.
std::vector<RunCommand> commands_of(const RunHistory& history);

/// The text of tokens, bytes joined before broken characters are replaced.
std::string text_of_tokens(const RunInfo& run, std::span<const int> tokens);

}  // namespace keyhole
