/// Records as JSON text, all but their rows and evictions: run.json of a trace file and the frames of its spool. Used by
/// trace_file.cpp alone.
#pragma once

#include "engine/trace/recorder.h"

#include <string>
#include <string_view>

namespace keyhole {

/// Which arrays a record has beside its scalars.
struct RowParts {
    bool attention = false, scores = false;
    bool any = false;  ///< there is a row block, be it empty
    bool shadow = false;
};

/// with_run: model, prompt and vocabulary too.
std::string format_trace_json(const StepList& steps, bool with_run);

struct ParsedTrace {
    StepList steps;                            ///< rows, evictions and prompt rows missing
    std::vector<std::vector<RowParts>> parts;  ///< [step][lane]
};

/// run: where the text has none. Throws Error(bad_file) naming `name`.
ParsedTrace parse_trace_json(std::string_view text, std::string_view name,
                             std::shared_ptr<const RunInfo> run);

/// Tables of a lane are as large as its first record says, or its parent's: throws Error(bad_file) naming `name` where a lane comes
/// twice in a step, or with other KV heads than before.
void check_lanes(const StepList& steps, std::string_view name);

}  // namespace keyhole
