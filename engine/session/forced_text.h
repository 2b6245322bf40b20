/// Texts and tokens that the next rows of all lanes consume, whatever the lanes choose. Used on the session's
/// thread, by the session only.
#pragma once

#include "engine/session/run_context.h"
#include "engine/session/session_state.h"

#include <vector>

namespace keyhole {

/// Queues tokens behind those that wait, or in their place (instead). A lane whose text ended with the
/// current row continues. Throws Error(wrong_use) for a token that the model does not have.
void force_tokens(const RunContext& context, SessionState& state, const std::vector<int>& tokens,
                  bool instead);

/// Queues the tokens of a text; in a chat the text is a turn. With SayText::after it waits until lane 0 has
/// ended its answer. Throws as force_tokens().
void say_text(const RunContext& context, SessionState& state, const SayText& say);

/// Says the first text that waits for lane 0's answer, if the answer has ended. Call it after every row.
void say_what_waits(const RunContext& context, SessionState& state);

}  // namespace keyhole
