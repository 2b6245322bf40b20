/// Formats run.json: a run's description and its scalars per step, as JSON text. Pure functions, for any
/// thread; knows histories and metrics.
#pragma once

#include "engine/export/options.h"
#include "engine/trace/run_history.h"

#include <optional>
#include <string>
#include <vector>

namespace keyhole {

/// What run.json says of the export itself.
struct ExportAbout {
    std::string program, command;          ///< empty: not known
    std::vector<std::string> files;        ///< all, run.json too, relative to its folder
    bool whole = true;                     ///< false: no more of the run than its model
    std::optional<ExportRange> part = {};  ///< set if arrays hold these layers and heads alone
};

/// Returns version, program, command, files, model {path, hash}, prompt, prompt_tokens, first_row, seed,
/// backend, commands, branch, branches, kv_heads, metrics (name: equation), lanes.
///
/// Of a part also layers, heads and exported_kv_heads: what the arrays hold, in their order. A lane with a
/// layout of its own has exported_kv_heads too.
///
/// `commands` are those of the shown branch, whose last stretch is `branch`. `branches` are the stretches
/// that rewinding cut off: {id, parent, from_row, last_row, commands}; a parent that is not listed is part of
/// the shown branch. Rows that a lane missed are null in its `steps`. NaN is null. Bytes that are not UTF-8
/// become U+FFFD.
std::string make_run_json(const RunHistory& history, int first_row, const ExportAbout& about = {});

/// Returns the commands in the records.
std::vector<RunCommand> commands_of(const RunHistory& history);

/// Returns the text of tokens; their bytes are joined before broken characters are replaced.
std::string text_of_tokens(const RunInfo& run, std::span<const int> tokens);

}  // namespace keyhole
