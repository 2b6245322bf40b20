/// The answer of each lane to the prompt, ready to be shown: marked right or wrong where the right
/// answer is known, and compared with lane 0. Only reads the state; window thread; knows neither GL nor
/// ImGui.
#pragma once

#include "app/state/app_state.h"
#include "app/view/lane_answers.h"

#include <string>
#include <vector>

namespace keyhole {

/// Returns the right answer to the prompt of the shown run; empty if it is not known.
std::string right_answer(const AppState& app);

/// Returns an answer for each lane. A live run's answers come from the engine. A trace holds them only if its
/// lanes chose their own tokens; otherwise the result is empty.
std::vector<ShownAnswer> shown_answers(const AppState& app);

/// Returns LaneAnswer::turn of the answers: -1 if they follow the prompt.
int answered_turn(const std::vector<ShownAnswer>& answers);

/// Returns the sentence that says what there is to see, such as "Lane 1 (h2o) is wrong: 1 of 48 KV heads
/// holds the watched words."; empty for a single lane.
std::string answers_caption(const AppState& app, const std::vector<ShownAnswer>& answers);
/// Returns whether some complete answer is wrong, or another one than lane 0's where none is known.
bool has_other_answer(const std::vector<ShownAnswer>& answers);

}  // namespace keyhole
