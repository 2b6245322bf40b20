/// Texts and tokens that the next rows of lanes consume, whatever the lanes choose. Used on the session's
/// thread, by the session only.
#pragma once

#include "engine/session/run_context.h"
#include "engine/session/session_state.h"

#include <vector>

namespace keyhole {

/// Queues tokens behind those that wait, or in their place (instead), in all lanes. A lane whose text ended
/// with the current row continues. Throws Error(wrong_use) for a token that the model does not have.
void force_tokens(const RunContext& context, SessionState& state, const std::vector<int>& tokens,
                  bool instead);

/// Queues the tokens of a text; in a chat the text is a turn, and a lane that has not ended its answer reads
/// its end token first. With SayText::after the text waits for the end of an answer (say_what_waits()).
/// Throws as force_tokens().
void say_text(const RunContext& context, SessionState& state, const SayText& say);

/// Says the next text that waits to each lane that has just ended its answer, and to all lanes that have not
/// heard it when lane 0 has. In a run that follows lane 0, all lanes hear it with lane 0. Call it after every
/// row.
void say_what_waits(const RunContext& context, SessionState& state);

}  // namespace keyhole
