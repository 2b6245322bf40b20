#include "app/state/story.h"

#include <algorithm>
#include <variant>

namespace keyhole {

namespace {

/// Returns whether the run has only been set by its lanes: no token was evicted, pinned or fed by hand.
bool is_untouched(const RunSpec& run) {
    return std::all_of(run.commands.begin(), run.commands.end(), [](const LoggedCommand& logged) {
        return std::holds_alternative<SetLane>(logged.command) ||
               std::holds_alternative<AddLane>(logged.command) ||
               std::holds_alternative<RemoveLane>(logged.command) ||
               std::holds_alternative<RestoreLane>(logged.command) ||
               std::holds_alternative<ForkLane>(logged.command) ||
               std::holds_alternative<SetFollow>(logged.command);
    });
}

/// Returns whether the lanes are those before, but for removed ones, which leave the others as they are, and
/// for names and shadows, which change no result.
bool only_lost_some(const std::vector<LaneSpec>& before, const std::vector<LaneSpec>& now) {
    auto from = before.begin();
    for (const LaneSpec& lane : now) {
        from = std::find_if(from, before.end(),
                            [&](const LaneSpec& other) { return same_results(other, lane); });
        if (from == before.end()) return false;
        ++from;
    }
    return true;
}

/// Runs again from the prompt if the lanes have other settings than those of the story on show. Returns
/// whether it does.
bool run_again(AppState& app) {
    StoryRun& own = app.story_run;
    const LaneEditor& editor = app.run.lane_editor;
    const bool changed = !only_lost_some(own.lanes, editor.lanes()) || own.follow != editor.follow();
    own.lanes = editor.lanes();
    own.follow = editor.follow();
    if (!changed || !is_untouched(app.run.status.run)) return false;
    app.start();
    return true;
}

/// Chooses the words of an own prompt, and the head that tells most of the answer.
void look_at_answer(AppState& app) {
    StoryRun& own = app.story_run;
    const std::vector<ShownAnswer> answers = shown_answers(app);
    const bool is_new = own.prompt != app.run.history.run().prompt;
    const bool users_words = app.view.watched && (!own.words || is_new || *app.view.watched != *own.words);
    own.prompt = app.run.history.run().prompt;
    if (!users_words && answered_turn(answers) < 0) {
        own.words = telling_words(app, answers);
        app.view.watched = own.words;
        if (own.words) app.view.measure_curve = ViewState::kWatchedSpan;
    }
    const HeadPlace shown{app.view.layer, app.view.head};
    if (!app.view.watched || (own.head && !is_new && *own.head != shown)) return;
    const Story story = story_of(app);
    own.head = telling_head(app.run.history, full_lane(app), *app.view.watched, story.first_row,
                            story.first_row + story.n_rows - 1);
    if (!own.head) return;
    app.view.layer = own.head->layer;
    app.view.head = own.head->head;
}

}  // namespace

void refresh_story(AppState& app, bool lanes_came) {
    StoryRun& own = app.story_run;
    const bool on = app.tells_story() && !app.lesson.shown && app.lesson.wanted.empty();
    const bool came = on && !own.on_show;
    own.on_show = on;
    if (!on) return;
    if (came || lanes_came) {
        own.lanes = app.run.lane_editor.lanes();
        own.follow = app.run.lane_editor.follow();
    }
    if (!app.run.has_steps()) return;
    const std::uint64_t id = app.run.history.run().id;
    if (app.run.live()) {
        if (run_again(app)) return;
        if (!app.run.recorded() || !app.run.has_taken_requests() || app.run.status.phase != EnginePhase::idle)
            return;
        if (std::exchange(own.answered, id) != id && app.run.n_decoded() == 0) return app.run.answer();
        if (app.run.status.answering) return;
    }
    if (std::exchange(own.looked_at, id) != id) app.choose_by_itself([&] { look_at_answer(app); });
}

}  // namespace keyhole
