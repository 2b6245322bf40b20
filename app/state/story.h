/// The story of a run: what was asked, what each lane answers and attends to while it answers, and which
/// heads still hold the words that the answer needs. Derived facts in plain values. Window thread; knows
/// neither GL nor ImGui.
#pragma once

#include "app/state/shown_answers.h"
#include "app/view/story_text.h"

#include <optional>
#include <string>
#include <vector>

namespace keyhole {

Story story_of(const AppState& app);

/// Returns the lane to which the others are compared: the first that evicts nothing, else lane 0; an index
/// into history.lanes().
int full_lane(const AppState& app);

/// Returns the words that explain the answers to what was asked last: see app/view/story_text.h.
std::optional<TokenSpan> telling_words(const AppState& app, const std::vector<ShownAnswer>& answers);

/// Keeps the story true while it is on show; call once a frame. A new run decodes its answer at once. When it
/// is complete, the view turns to the telling head, and the words of an own prompt are watched. A lane whose
/// settings change runs again from the prompt, unless the user has touched single tokens in this run.
/// lanes_came: the lanes changed without the user, as RunState::Changes says: the run has them already.
void refresh_story(AppState& app, bool lanes_came);

}  // namespace keyhole
