/// Moves the lesson on show on: opens it, goes to a step, reveals, resets, measures. Window thread; knows
/// neither GL nor ImGui.
#pragma once

#include "app/state/app_state.h"

#include <string_view>

namespace keyhole {

/// Shows the list of lessons in place of a lesson.
void list_lessons(AppState& app);
/// Opens a lesson by number, name or file. If another model than the lesson's is loaded, a check of the
/// lesson on it begins, and the lesson waits for the choice of the model. Throws what find_lesson() throws.
void open_lesson(AppState& app, std::string_view name);
/// Begins the lesson that waits: with its own model, which is fetched if it is not here; or with the loaded
/// one. Throws Error(wrong_use) if no lesson waits.
void begin_with_own_model(AppState& app);
void begin_with_loaded_model(AppState& app);
/// Closes lessons and brings back what was on show before the first one, unless `keeps`, or the user has
/// started another run or opened a trace since.
void close_lesson(AppState& app, bool keeps = false);
/// Forgets the run from before the lessons, since another run begins.
void forget_run_before_lessons(LessonState& lesson);

/// Goes to a step, 0 for the first. The run goes on to there, or begins anew where it has been changed since,
/// or has gone further. Throws Error(wrong_use) without a lesson or such a step.
void go_to_lesson_step(AppState& app, int step);
/// Returns whether the step's control begins the run anew: where a question follows the prompt, later
/// settings do not change its answer. Not where the lesson itself changes lanes on the way.
bool plays_anew(const LessonState& lesson);
/// Changes a lane for the step's control: from the next step on, or in a run that begins anew and goes on to
/// where it was.
void play_with_lane(AppState& app, int lane, const LaneSpec& spec);
/// Brings the run of the present step back as the step begins.
void reset_lesson_step(AppState& app);
/// Reveals the step, or goes on to the next one if it is revealed or has nothing to reveal.
void advance_lesson(AppState& app);
void predict_choice(AppState& app, int choice);
void predict_number(AppState& app, double guess);

/// Runs what the lesson has waiting, and measures its claims. Returns true if something visible changed.
bool refresh_lesson(AppState& app);
/// Shows what the step looks at, if that is due. Call after the frame loop has looked at a new run.
void apply_lesson_look(AppState& app);

bool has_reveal(const LessonStep& step);
/// Returns the evidence that the run on show gives.
Evidence lesson_evidence(AppState& app);
/// Returns whether the prediction was right; nullopt: there was none, or it is not known yet. A slider is
/// right within a tenth of its range.
std::optional<bool> predicted_right(const AppState& app);

/// Makes a lesson of the run on show: its lanes and prompt, the changes by hand, a step for each bookmark,
/// and a claim for each lane's answer.
Lesson lesson_of_run(const AppState& app, std::string title);
/// Appends to a lesson's steps one that shows the present view.
LessonStep step_of_view(const AppState& app, std::string text);
/// Writes the shown lesson to its file. One that came with Keyhole is copied to the user's folder first.
/// Throws Error(io).
void save_shown_lesson(AppState& app);

}  // namespace keyhole
