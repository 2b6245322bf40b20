#include "app/state/shown_answers.h"

#include "app/state/story.h"
#include "app/view/story_text.h"
#include "engine/analysis/watched_span.h"
#include "engine/base/counted.h"
#include "engine/base/index.h"
#include "engine/policy/lane_names.h"

#include <algorithm>

namespace keyhole {

std::vector<ShownAnswer>::const_iterator first_other(const std::vector<ShownAnswer>& answers) {
    return std::find_if(answers.begin(), answers.end(), [&](const ShownAnswer& shown) {
        return shown.mark == ShownAnswer::Mark::wrong ||
               (shown.mark == ShownAnswer::Mark::none &&
                shown.answer.tokens != answers.front().answer.tokens);
    });
}

std::string right_answer(const AppState& app) {
    if (!app.run.has_steps()) return {};
    const RunInfo& run = app.run.history.run();
    if (!app.run.live() && !app.run.opened_answers.right.empty()) return app.run.opened_answers.right;
    if (!app.run.live() && !run.start.right_answer.empty()) return run.start.right_answer;
    // A trace may be of another prompt.
    return run.prompt == app.run.setup.prompt ? app.run.setup.guide.answer : "";
}

std::optional<TokenSpan> words_to_watch(const AppState& app) {
    if (!app.run.has_steps()) return std::nullopt;
    const RunHistory& history = app.run.history;
    if (app.run.live())
        return history.run().prompt == app.run.setup.prompt
                   ? watched_span(history, 0, app.run.setup.guide.watch)
                   : std::nullopt;
    const std::optional<TokenSpan>& kept = app.run.opened_answers.watched;
    if (!kept) return watched_span(history, 0, history.run().start.watch);
    return kept->last <= app.run.last_row() ? kept : std::nullopt;
}

std::vector<ShownAnswer> shown_answers(const AppState& app) {
    std::vector<ShownAnswer> list;
    if (!app.run.has_steps()) return list;
    const RunHistory& history = app.run.history;
    const std::vector<LaneAnswer>& kept = app.run.opened_answers.answers;
    if (!app.run.live() && app.run.lane_editor.follow() && kept.empty()) return list;
    const std::string known = right_answer(app);
    for (int lane = 0; lane < app.run.lane_editor.n_lanes(); ++lane) {
        ShownAnswer shown;
        shown.lane = lane;
        const LaneKey& key = app.run.lane_editor.key(lane);
        if (!app.run.live() && !kept.empty()) {
            for (const LaneAnswer& answer : kept)
                if (answer.lane_id == key.id) shown.answer = answer;
        } else if (!app.run.live()) {
            if (const std::optional<int> recorded = app.run.history_lane(lane))
                shown.answer = answer_in_record(history, *recorded);
        } else if (app.run.status.answers != nullptr && key.run == app.run.status.run_id) {
            for (const LaneAnswer& answer : *app.run.status.answers)
                if (answer.lane_id == key.id) shown.answer = answer;
        }
        list.push_back(std::move(shown));
    }
    // The known answer is that to the prompt.
    mark_answers(list, answered_turn(list) < 0 ? known : "");
    return list;
}

namespace {

/// Returns the lanes with the settings that gave the answers.
std::vector<LaneSpec> answer_specs(const AppState& app, const std::vector<ShownAnswer>& answers) {
    std::vector<LaneSpec> specs;
    for (const ShownAnswer& shown : answers) {
        const LaneSpec& lane = app.run.lane_editor.lanes()[to_index(shown.lane)];
        const LaneOnShow& recorded = app.shown().at(shown.lane);
        // What an opened trace answered does not follow its lanes' settings.
        const LaneSpec& own = !app.run.live() && recorded.known ? recorded.spec : lane;
        specs.push_back(shown.answer.spec.empty() ? own : parse_stored_lane_spec(shown.answer.spec));
        specs.back().name = lane.name;
    }
    return specs;
}

/// Returns the answer that the caption is about: that of the lane that the story explains, too.
std::vector<ShownAnswer>::const_iterator told_answer(const AppState& app,
                                                     const std::vector<ShownAnswer>& answers) {
    const auto first = first_other(answers);
    if (first == answers.begin()) return first;  // lane 0 itself is wrong
    std::vector<StoryLane> lanes(answers.size());
    for (std::size_t i = 0; i < answers.size(); ++i) {
        lanes[i].lane = answers[i].lane;
        lanes[i].shown = answers[i];
        if (const auto held = held_when_answering(app, answers[i]))
            lanes[i].n_holding = held->n_heads_with_all;
    }
    const int told = explained_lane(lanes, app.view.lane, answers.front().mark != ShownAnswer::Mark::none);
    return told < 0 ? first : answers.begin() + told;
}

/// Says how many lanes besides the told one are wrong or answer differently, as a sentence; empty: none.
std::string other_answers_text(const std::vector<ShownAnswer>& answers, bool is_wrong) {
    const auto n = std::count_if(answers.begin(), answers.end(),
                                 [&](const ShownAnswer& shown) {
                                     return is_wrong ? shown.mark == ShownAnswer::Mark::wrong
                                                     : shown.answer.tokens != answers.front().answer.tokens;
                                 }) -
                   1;
    if (n < 1) return {};
    return fmt::format(" {} {} too.", counted(static_cast<int>(n), "other lane"),
                       !is_wrong ? (n == 1 ? "answers differently" : "answer differently")
                       : n == 1  ? "is wrong"
                                 : "are wrong");
}

}  // namespace

std::vector<std::string> answer_titles(const AppState& app, const std::vector<ShownAnswer>& answers) {
    const std::vector<LaneSpec> specs = answer_specs(app, answers);
    std::vector<std::string> titles = lane_names(specs);
    for (std::size_t i = 0; i < titles.size(); ++i)
        titles[i] = fmt::format("{} {}", answers[i].lane, titles[i]);
    return titles;
}

std::optional<HeldWhenAnswering> held_when_answering(const AppState& app, const ShownAnswer& shown) {
    if (!app.view.watched) return std::nullopt;
    const int turn = shown.answer.turn;
    if (turn >= 0 && app.watched_since_turn() != turn) return std::nullopt;  // words of an earlier question
    const TokenSpan& words = *app.view.watched;
    if (const StoredSet* stored = shown.answer.stored.get()) {
        if (words.last > stored->row) return std::nullopt;  // not yet written then
        HeldWhenAnswering held{0, stored->n_heads};
        for (int g = 0; g < held.n_heads; ++g)
            held.n_heads_with_all += stored->holds(g, words.first, words.last) ? 1 : 0;
        return held;
    }
    const std::optional<int> recorded = app.run.history_lane(shown.lane);
    const int row = app.run.first_row();
    if (app.run.live() || !recorded || words.last > row) return std::nullopt;
    return HeldWhenAnswering{heads_with_all(app.run.history, *recorded, words, row),
                             app.run.history.layout(*recorded).n_kv_heads()};
}

int answered_turn(const std::vector<ShownAnswer>& answers) {
    return answers.empty() ? -1 : answers.front().answer.turn;
}

bool has_other_answer(const std::vector<ShownAnswer>& answers) {
    return std::all_of(answers.begin(), answers.end(),
                       [](const ShownAnswer& shown) { return shown.answer.complete; }) &&
           first_other(answers) != answers.end();
}

std::string watched_words(const AppState& app) {
    constexpr int kMost = 16;  // tokens
    const std::vector<int>& tokens = app.run.history.lanes()[to_index(app.text_lane())].tokens;
    const TokenSpan& words = *app.view.watched;
    std::string text;
    for (int p = words.first; p <= std::min(words.last, words.first + kMost - 1); ++p)
        if (to_index(p) < tokens.size()) text += app.glyphs.token(app.run.history.run(), tokens[to_index(p)]);
    text.erase(0, std::min(text.find_first_not_of(' '), text.size()));
    return words.size() > kMost ? text + "…" : text;
}

std::string answers_caption(const AppState& app, const std::vector<ShownAnswer>& answers) {
    if (app.run.records() == RunState::Records::unread)
        return "The prompt was not read, so nothing is answered. Restart reads it.";
    if (app.run.records() == RunState::Records::reading) return "The prompt is being read.";
    if (answers.size() < 2) return {};
    const bool all = std::all_of(answers.begin(), answers.end(),
                                 [](const ShownAnswer& shown) { return shown.answer.complete; });
    if (!all && app.run.answers_need_stop()) return "Lanes without an answer give one when the run stops.";
    if (!all) return "The lanes are still answering.";
    const auto other = told_answer(app, answers);
    const bool is_wrong = other != answers.end() && other->mark == ShownAnswer::Mark::wrong;
    if (!answers.front().answer.failure.empty() && !is_wrong)
        return "Lane 0 gives no answer, so none is compared with it.";
    if (other == answers.end()) return "All lanes give the same answer.";
    const std::vector<std::string> titles = answer_titles(app, answers);
    const auto name_of = [&](const ShownAnswer& shown) {
        const std::string& title = titles[to_index(&shown - answers.data())];
        return paper_name(title.substr(title.find(' ') + 1));
    };
    const bool keeps_all = answer_specs(app, answers).front().policy.preset == Preset::full;
    if (other == answers.begin() && keeps_all)
        if (const std::string silent = silent_model_sentence(name_of(*other), other->answer); !silent.empty())
            return silent;
    const std::string text =
        fmt::format("{} {}", name_of(*other), is_wrong ? "is wrong" : "answers differently");
    const std::string too = other_answers_text(answers, is_wrong);
    const std::optional<HeldWhenAnswering> held = held_when_answering(app, *other);
    if (!held || held->n_heads_with_all == held->n_heads) return text + "." + too;
    std::string others;  // that are right
    for (const ShownAnswer& shown : answers) {
        const auto its = held_when_answering(app, shown);
        if (shown.lane > 0 && shown.mark == ShownAnswer::Mark::right && its)
            others +=
                fmt::format("{}{}: {}", others.empty() ? " (" : ", ", name_of(shown), its->n_heads_with_all);
    }
    return fmt::format("{}: when it answered, {} of {} heads still had “{}”{}.{}", text,
                       held->n_heads_with_all == 0 ? "none" : std::to_string(held->n_heads_with_all),
                       held->n_heads, watched_words(app), others.empty() ? "" : others + ")", too);
}

}  // namespace keyhole
