/// The answer of each lane to the prompt, ready to be shown: marked right or wrong where the right
/// answer is known, and compared with lane 0. Only reads the state; window thread; knows neither GL nor
/// ImGui.
#pragma once

#include "app/state/app_state.h"
#include "app/view/lane_answers.h"

#include <optional>
#include <string>
#include <vector>

namespace keyhole {

/// Returns the right answer to the prompt of the shown run; empty if it is not known.
std::string right_answer(const AppState& app);
/// Returns the words that the prompt's file names, or those that an opened trace says; nullopt: none, or the
/// text has them not.
std::optional<TokenSpan> words_to_watch(const AppState& app);

/// Returns an answer for each lane. A live run's answers come from the engine. A trace holds them only if its
/// lanes chose their own tokens; otherwise the result is empty.
std::vector<ShownAnswer> shown_answers(const AppState& app);

/// Returns the number and name of each lane as the settings say that gave the answer; those that it is to
/// have where there is no answer yet.
std::vector<std::string> answer_titles(const AppState& app, const std::vector<ShownAnswer>& answers);

/// How many KV heads held all watched words when a lane began to answer.
struct HeldWhenAnswering {
    int n_heads_with_all = 0, n_heads = 0;
};
/// nullopt: it is not known, or the watched words are not of the question that was answered.
std::optional<HeldWhenAnswering> held_when_answering(const AppState& app, const ShownAnswer& shown);

/// Returns the watched words, shortened; app.view.watched must be set.
std::string watched_words(const AppState& app);
/// Returns the first answer that is wrong, or another one than lane 0's where the right one is not known.
std::vector<ShownAnswer>::const_iterator first_other(const std::vector<ShownAnswer>& answers);

/// Returns LaneAnswer::turn of the answers: -1 if they follow the prompt.
int answered_turn(const std::vector<ShownAnswer>& answers);

/// Returns the sentence that says what there is to see, such as "H2O is wrong: when it answered, 1 of 48
/// heads still had “4821” (TOVA: 16)."; empty for a single lane.
std::string answers_caption(const AppState& app, const std::vector<ShownAnswer>& answers);
/// Returns whether some complete answer is wrong, or another one than lane 0's where none is known.
bool has_other_answer(const std::vector<ShownAnswer>& answers);

}  // namespace keyhole
