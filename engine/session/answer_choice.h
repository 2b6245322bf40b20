/// Makes the answer of a lane longer by the token that the lane chose. Used on the session's thread.
#pragma once

#include "engine/run/answer.h"
#include "engine/session/lane.h"
#include "engine/session/run_context.h"

#include <vector>

namespace keyhole {

/// Returns how many tokens after the prompt are no answer of the lane: those up to the user's last turn, or
/// those that the run gave. At most all that the lane has consumed.
std::size_t n_given_tokens(const RunContext& context, const LaneState& lane);

/// Returns the answer that has the lane's choice after these tokens; without the choice if it is the model's
/// end of text. Complete at the end of text, at a stop text, at end.max_tokens, at the last position that the
/// model has, and if the lane failed.
///
/// tokens: of the answer so far, which the lane has consumed. row: the last one that it processed.
LaneAnswer answer_with_choice(const RunContext& context, const AnswerEnd& end, const Lane& lane,
                              std::vector<int> tokens, int row);

}  // namespace keyhole
