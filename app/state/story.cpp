#include "app/state/story.h"

#include "engine/analysis/compare.h"
#include "engine/analysis/run_rows.h"
#include "engine/base/index.h"

#include <algorithm>

namespace keyhole {

namespace {

using Mark = ShownAnswer::Mark;

/// Returns the text of a lane's tokens in [first, last].
std::string text_between(const RunHistory& history, int lane, int first, int last) {
    std::string text;
    for (int p = std::max(first, 0); p <= last; ++p) text += token_text(history, lane, p);
    return text;
}

/// Returns the row that chose the first token of the answers.
int first_answer_row(const AppState& app, const std::vector<ShownAnswer>& answers) {
    const int turn = answered_turn(answers);
    return std::clamp(turn >= 0 ? turn : app.run.history.n_prompt() - 1, app.run.first_row(),
                      app.run.last_row());
}

/// Returns what was asked last: the prompt, or the text up to the end of the user's turn.
std::string asked(const AppState& app, int first_row) {
    const RunInfo& run = app.run.history.run();
    constexpr int kEnough = 120;  // tokens
    const bool prompt = first_row == app.run.history.n_prompt() - 1;
    return prompt ? run.prompt : text_between(app.run.history, 0, first_row - kEnough, first_row);
}

std::string keeps_text(const AppState& app, const ShownAnswer& shown, int row) {
    if (const StoredSet* stored = shown.answer.stored.get(); stored != nullptr && stored->n_heads > 0) {
        const auto n = std::count(stored->bits.begin(), stored->bits.end(), true);
        return kept_of_text(double(n) / stored->n_heads, stored->row + 1);
    }
    // Records of a trace say what its lanes stored; their budgets may have changed since.
    const std::optional<int> known = app.run.live() ? std::nullopt : app.run.history_lane(shown.lane);
    const std::string kept = known ? kept_in_record(app.run.history, *known, row) : "";
    if (!kept.empty()) return kept;
    const Amount& budget = app.run.lane_editor.lanes()[to_index(shown.lane)].policy.budget;
    return budget.unit == Amount::Unit::tokens    ? fmt::format("{:g} tokens", budget.value)
           : budget.unit == Amount::Unit::percent ? fmt::format("{:g} % of the tokens", budget.value)
           : budget.unit == Amount::Unit::beside  ? fmt::format("{:g} tokens beside the prompt", budget.value)
                                                  : "all tokens";
}

/// Returns which KV heads held all watched words when the lane began to answer.
std::vector<bool> holding_heads(const AppState& app, const ShownAnswer& shown, int first_row) {
    std::vector<bool> holds;
    const std::optional<HeldWhenAnswering> held = held_when_answering(app, shown);
    if (!held) return holds;
    const TokenSpan& words = *app.view.watched;
    const StoredSet* stored = shown.answer.stored.get();
    const std::optional<int> known = app.run.history_lane(shown.lane);
    for (int g = 0; g < held->n_heads; ++g) {
        bool all = true;
        for (int p = words.first; p <= words.last && stored == nullptr; ++p)
            all = all && known && app.run.history.stored(*known, g, p, first_row);
        holds.push_back(stored != nullptr ? stored->holds(g, words.first, words.last) : all);
    }
    return holds;
}

/// Returns StoryLane::mark: of the answer, which is of the present settings, and of the map, which is not.
std::string mark_of(const AppState& app, const ShownAnswer& answer, int first_row) {
    const LaneOnShow& shown = app.shown().at(answer.lane);
    const std::string& tried = answer.answer.spec;  // while a slider is dragged, the lane stays as it is
    const bool is_tried = app.run.live() && shown.known && shown.mark.empty() && !tried.empty() &&
                          !same_results(parse_stored_lane_spec(tried), shown.spec);
    if (is_tried || (app.run.live() && shown.old_settings && shown.mark == kOldSettings))
        return "new settings; map of the old ones";
    if (!shown.mark.empty() || !shown.known) return shown.mark;
    const RunHistory& history = app.run.history;
    const int known = *shown.known, first = history.lanes()[to_index(known)].first_row;
    const bool has_row = history.lane_record(first_row, lane_of_row(history, known, first_row)) != nullptr;
    return has_row || first <= first_row ? "" : fmt::format("map: no rows before step {}", first);
}

StoryLane lane_of_story(const AppState& app, const ShownAnswer& shown, const std::string& title,
                        const Story& story) {
    StoryLane lane;
    lane.lane = shown.lane;
    lane.name = paper_name(title.substr(title.find(' ') + 1));
    lane.shown = shown;
    lane.keeps = keeps_text(app, shown, story.first_row);
    lane.holds = holding_heads(app, shown, story.first_row);
    lane.n_holding = static_cast<int>(std::count(lane.holds.begin(), lane.holds.end(), true));
    lane.is_merged = app.layout(shown.lane).n_kv_heads() < app.run.history.run().layout.n_kv_heads();
    lane.is_fed = shown.lane > 0 && app.run.lane_editor.follow();
    lane.mark = mark_of(app, shown, story.first_row);
    const std::optional<int> known = app.run.drawn_lane(shown.lane);
    const RunInfo& run = app.run.history.run();
    for (int i = 0; i < story.n_rows; ++i) {
        const int token = known ? own_choice(app.run.history, *known, story.first_row + i + 1) : -1;
        lane.rows.push_back(token < 0 ? "" : app.glyphs.token(run, token));
    }
    return lane;
}

std::string sentence_of(const AppState& app, const Story& story, bool known) {
    if (app.run.records() == RunState::Records::unread)
        return "The prompt was not read, so nothing is answered. Restart reads it.";
    if (app.run.records() == RunState::Records::reading) return "The prompt is being read.";
    if (!story.complete) return "The lanes are answering.";
    return story_sentence(story, known);
}

/// Returns what the explained lane answers with the watched words back; empty: it was not asked.
std::string given_back_text(const AppState& app, const Story& story) {
    const auto& back = app.run.status.counterfactual;
    if (story.explained < 0 || back == nullptr || !app.view.watched || !app.run.live()) return "";
    const LaneOnShow& shown = app.shown().at(story.explained);
    if (shown.id != back->lane_id || back->position != app.view.watched->first ||
        back->n_tokens != app.view.watched->size() || back->row != story.first_row)
        return "";
    const LaneAnswer& with = back->answer_with;
    if (!with.failure.empty()) return with.failure;
    return with.complete ? given_back_sentence(story, with.text, with.text == back->answer_as_is.text) : "";
}

}  // namespace

int full_lane(const AppState& app) {
    for (int lane = 0; lane < app.run.lane_editor.n_lanes(); ++lane) {
        const std::optional<int> known = app.run.history_lane(lane);
        const LaneRecord* record =
            known ? app.run.history.lane_record(app.run.history.lanes()[to_index(*known)].first_row, *known)
                  : nullptr;
        if (record != nullptr && !record->info->policy.evicts()) return *known;
    }
    return app.run.drawn_lane(0).value_or(0);
}

std::optional<TokenSpan> telling_words(const AppState& app, const std::vector<ShownAnswer>& answers) {
    const int first_row = first_answer_row(app, answers);
    return telling_words(app.run.history, answers, asked(app, first_row), first_row, full_lane(app));
}

Story story_of(const AppState& app) {
    Story story;
    if (!app.run.has_steps()) return story;
    std::vector<ShownAnswer> answers = shown_answers(app);
    const bool no_answers = answers.empty();  // of a trace whose lanes followed lane 0
    for (int lane = 0; no_answers && lane < app.run.lane_editor.n_lanes(); ++lane)
        answers.emplace_back().lane = lane;
    story.first_row = first_answer_row(app, answers);
    story.question = app.glyphs.text(last_sentence(asked(app, story.first_row)));
    if (app.view.watched) {
        story.words = watched_words(app);
        story.text = {std::max(app.view.watched->first - Story::kAround, 0),
                      std::min(app.view.watched->last + Story::kAround, app.run.last_row())};
    }
    for (const ShownAnswer& shown : answers)
        story.n_rows = no_answers ? Story::kMostRows
                                  : std::max(story.n_rows, static_cast<int>(shown.answer.tokens.size()));
    story.n_rows =
        std::min({story.n_rows, Story::kMostRows, std::max(app.run.last_row() - story.first_row + 1, 1)});
    story.complete = !no_answers && std::all_of(answers.begin(), answers.end(),
                                                [](const auto& shown) { return shown.answer.complete; });
    const std::vector<std::string> titles = answer_titles(app, answers);
    for (std::size_t i = 0; i < answers.size(); ++i)
        story.lanes.push_back(lane_of_story(app, answers[i], titles[i], story));
    if (story.lanes.empty()) return story;
    const bool known = answers.front().mark != Mark::none;
    if (story.complete) story.explained = explained_lane(story.lanes, app.view.lane, known);
    story.sentence = no_answers
                         ? "The lanes of this trace followed lane 0, so it does not hold their own answers."
                         : sentence_of(app, story, known);
    story.warns = story.explained >= 0;
    story.given_back = given_back_text(app, story);
    return story;
}

}  // namespace keyhole
