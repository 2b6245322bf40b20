/// Makes the record of a step from the session's state. Used on the session's thread, by the session only.
#pragma once

#include "engine/session/run_context.h"
#include "engine/session/session_state.h"

#include <memory>
#include <span>

namespace keyhole {

/// Returns a record with only the row and the lanes: for prompt rows, which the history does not hold one by
/// one.
StepTrace bare_step(std::shared_ptr<const RunInfo> run, std::span<const Lane> lanes, int row);

/// Returns the record of the newest row, without branches, prompt and time. Takes from the lanes what only
/// one record may hold.
std::shared_ptr<StepTrace> make_record(const RunContext& context, SessionState& state);

/// Sends the lanes' rows of a finished record to the sink, if there is one.
void send_rows(const RunContext& context, const SessionState& state, const StepTrace& step);

}  // namespace keyhole
