#include "app/state/story.h"

#include "engine/analysis/compare.h"
#include "engine/analysis/run_rows.h"
#include "engine/analysis/watched_span.h"
#include "engine/base/index.h"
#include "engine/policy/preset_table.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <utility>

namespace keyhole {

namespace {

using Mark = ShownAnswer::Mark;

/// Returns what papers call a preset, or what stands for it beside an answer.
std::string paper_name_of(const PresetRow& row) {
    struct Name {
        std::string_view preset, written;
    };
    static constexpr std::array kNames = {
        Name{"full", "Full cache"},   Name{"window", "Window"}, Name{"dilated", "Dilated window"},
        Name{"key", "Key attention"}, Name{"h2o", "H2O"},       Name{"tova", "TOVA"},
        Name{"a2sf", "A2SF"}};
    const auto found = std::ranges::find(kNames, row.name, &Name::preset);
    if (found != kNames.end()) return std::string(found->written);
    std::string name(row.title.empty() ? row.name : row.title);
    if (!name.empty() && name[0] >= 'a' && name[0] <= 'z') name[0] = static_cast<char>(name[0] - 'a' + 'A');
    return name;
}

/// Returns the text of a lane's tokens in [first, last].
std::string text_between(const RunHistory& history, int lane, int first, int last) {
    std::string text;
    for (int p = std::max(first, 0); p <= last; ++p) text += token_text(history, lane, p);
    return text;
}

/// Returns a token without the blanks around it.
std::string_view bare(std::string_view token) {
    constexpr std::string_view kBlanks = " \n\t\r";
    const std::size_t first = token.find_first_not_of(kBlanks);
    return first == std::string_view::npos ? std::string_view()
                                           : token.substr(first, token.find_last_not_of(kBlanks) - first + 1);
}

/// Returns whether a token has a letter or a digit. Bytes beyond ASCII count as letters.
bool is_word(std::string_view token) {
    return std::any_of(token.begin(), token.end(), [](char c) {
        const auto u = static_cast<unsigned char>(c);
        return u >= 0x80 || std::isalnum(u) != 0;
    });
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

std::string keeps_text(const AppState& app, const ShownAnswer& shown) {
    if (const StoredSet* stored = shown.answer.stored.get(); stored != nullptr && stored->n_heads > 0) {
        const auto n = std::count(stored->bits.begin(), stored->bits.end(), true);
        const double mean = double(n) / stored->n_heads, all = stored->row + 1;
        if (mean >= all) return fmt::format("all {} tokens", stored->row + 1);
        return fmt::format("{:.0f} of {} tokens, {:.0f} %", mean, stored->row + 1, 100 * mean / all);
    }
    const Amount& budget = app.run.lane_editor.lanes()[to_index(shown.lane)].policy.budget;
    return budget.unit == Amount::Unit::tokens    ? fmt::format("{:g} tokens", budget.value)
           : budget.unit == Amount::Unit::percent ? fmt::format("{:g} % of the tokens", budget.value)
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

StoryLane lane_of_story(const AppState& app, const ShownAnswer& shown, const std::string& title,
                        const Story& story) {
    StoryLane lane;
    lane.lane = shown.lane;
    lane.name = paper_name(title.substr(title.find(' ') + 1));
    lane.shown = shown;
    lane.keeps = keeps_text(app, shown);
    lane.holds = holding_heads(app, shown, story.first_row);
    lane.n_holding = static_cast<int>(std::count(lane.holds.begin(), lane.holds.end(), true));
    lane.is_fed = shown.lane > 0 && app.run.lane_editor.follow();
    lane.mark = app.shown().at(shown.lane).mark;
    const std::optional<int> known = app.run.drawn_lane(shown.lane);
    const RunInfo& run = app.run.history.run();
    for (int i = 0; i < story.n_rows; ++i) {
        const int token = known ? own_choice(app.run.history, *known, story.first_row + i + 1) : -1;
        lane.rows.push_back(token < 0 ? "" : app.glyphs.token(run, token));
    }
    return lane;
}

/// Returns the lane that is worth a sentence: the focused one if it is wrong, else the wrong one of which the
/// fewest heads held the words; -1: none.
int explained_lane(const AppState& app, const std::vector<StoryLane>& lanes, bool known) {
    const auto is_wrong = [&](const StoryLane& lane) {
        return lane.lane > 0 && (known ? lane.shown.mark == Mark::wrong
                                       : lane.shown.answer.tokens != lanes.front().shown.answer.tokens);
    };
    int least = -1;
    for (const StoryLane& lane : lanes) {
        if (!is_wrong(lane)) continue;
        if (lane.lane == app.view.lane) return lane.lane;
        if (least < 0 || lane.n_holding < lanes[to_index(least)].n_holding) least = lane.lane;
    }
    return least;
}

std::string heads_text(const StoryLane& lane) {
    return fmt::format("{} ({})", lane.name, lane.n_holding);
}

/// Returns what the sentence adds on the other lanes: "Right: TOVA (16). Wrong too: Window (0)."
std::string others_text(const std::vector<StoryLane>& lanes, int explained, bool known) {
    std::string right, wrong;
    for (const StoryLane& lane : lanes) {
        if (lane.lane == explained || lane.lane == 0 || lane.holds.empty()) continue;
        const bool is_right = known ? lane.shown.mark == Mark::right
                                    : lane.shown.answer.tokens == lanes.front().shown.answer.tokens;
        std::string& list = is_right ? right : wrong;
        list += (list.empty() ? "" : ", ") + heads_text(lane);
    }
    std::string text;
    if (!right.empty()) text += fmt::format(" Right: {}.", right);
    if (!wrong.empty()) text += fmt::format(" Wrong too: {}.", wrong);
    return text;
}

std::string quoted_answer(const StoryLane& lane) {
    const std::string_view text = bare(lane.shown.answer.text);
    return text.empty() ? "nothing" : fmt::format("“{}”", text);
}

/// Returns the sentence on the lane that is wrong.
std::string wrong_sentence(const Story& story, bool known) {
    const StoryLane& lane = story.lanes[to_index(story.explained)];
    const int n = static_cast<int>(lane.holds.size());
    if (lane.holds.empty()) {
        if (!known)
            return fmt::format("{} says {}, the {} {}.", lane.name, quoted_answer(lane), "full cache",
                               quoted_answer(story.lanes.front()));
        return fmt::format("{} is wrong: it says {}.", lane.name, quoted_answer(lane));
    }
    const std::string held = lane.n_holding == 0 ? "none" : std::to_string(lane.n_holding);
    const std::string others = others_text(story.lanes, story.explained, known);
    const std::string as_ever = known ? "is wrong" : "answers differently";
    if (2 * lane.n_holding > n)
        return fmt::format("{} {}, though {} of {} heads held “{}” when it answered.{}", lane.name, as_ever,
                           held, n, story.words, others);
    return fmt::format("{} threw “{}” away: when it answered, {} of {} heads had it.{}", lane.name,
                       story.words, held, n, others);
}

/// Returns the sentence where no lane is wrong.
std::string right_sentence(const Story& story, bool known) {
    const bool evicts = std::any_of(story.lanes.begin(), story.lanes.end(),
                                    [](const StoryLane& lane) { return !lane.keeps.starts_with("all"); });
    if (!evicts) return "Every lane still holds every token, so all give the same answer.";
    std::string held;
    for (const StoryLane& lane : story.lanes)
        if (lane.lane > 0 && !lane.holds.empty()) held += (held.empty() ? "" : ", ") + heads_text(lane);
    std::string text = known ? "Every lane is right." : "All lanes give the same answer.";
    if (!held.empty()) {
        const auto counted = std::find_if(story.lanes.begin(), story.lanes.end(),
                                          [](const StoryLane& l) { return !l.holds.empty(); });
        text += fmt::format(" Heads of {} that had “{}”: {}.", counted->holds.size(), story.words, held);
    }
    return text;
}

std::string sentence_of(const AppState& app, const Story& story, bool known) {
    if (app.run.records() == RunState::Records::unread)
        return "The prompt was not read, so nothing is answered. Restart reads it.";
    if (app.run.records() == RunState::Records::reading) return "The prompt is being read.";
    if (!story.complete) return "The lanes are answering.";
    if (known && story.lanes.front().shown.mark == Mark::wrong &&
        story.lanes.front().keeps.starts_with("all"))
        return fmt::format(
            "{} itself is wrong: this model does not know the answer, so eviction is not to blame.",
            story.lanes.front().name);
    return story.explained >= 0 ? wrong_sentence(story, known) : right_sentence(story, known);
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
    const std::string& name = story.lanes[to_index(story.explained)].name;
    if (!with.failure.empty()) return with.failure;
    if (!with.complete) return "";
    return with.text == back->answer_as_is.text
               ? fmt::format("With “{}” back, {} still answers “{}”.", story.words, name, bare(with.text))
               : fmt::format("With “{}” back, {} answers “{}”.", story.words, name, bare(with.text));
}

}  // namespace

std::string paper_name(const std::string& lane_name) {
    const std::string preset = lane_name.substr(0, lane_name.find(' '));
    for (const PresetRow& row : presets())
        if (row.name == preset) return paper_name_of(row) + lane_name.substr(preset.size());
    return lane_name;
}

std::string last_sentence(const std::string& text) {
    std::string_view rest = bare(text);
    // The sentence's own end is no border.
    const std::size_t from = rest.size() > 2 ? rest.size() - 2 : std::string_view::npos;
    std::size_t begin = 0;
    for (std::size_t i = from == std::string_view::npos ? 0 : from; i > 0; --i) {
        const char c = rest[i - 1];
        const bool ends = (c == '.' || c == '?' || c == '!' || c == '"') && rest[i] == ' ';
        if (ends || c == '\n') {
            begin = i;
            break;
        }
    }
    return std::string(bare(rest.substr(begin)));
}

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

std::optional<HeadPlace> telling_head(const RunHistory& history, int lane, TokenSpan watched, int first_row,
                                      int last_row) {
    const ModelConfig& config = history.run().config;
    std::vector<double> sums(to_index(config.n_layers) * to_index(config.n_heads), 0);
    for (int row = first_row; row <= last_row; ++row)
        attention_values_of_all(history, lane, row, [&](int layer, int head, std::span<const float> values) {
            double& sum = sums[to_index(layer) * to_index(config.n_heads) + to_index(head)];
            for (int p = watched.first; p <= watched.last && to_index(p) < values.size(); ++p)
                if (values[to_index(p)] > 0) sum += values[to_index(p)];
        });
    const auto best = std::max_element(sums.begin(), sums.end());
    if (best == sums.end() || !(*best > 0)) return std::nullopt;
    const int index = static_cast<int>(best - sums.begin());
    return HeadPlace{index / config.n_heads, index % config.n_heads};
}

namespace {

/// The part of the full lane's answer from the first token on that another lane chose differently.
struct FirstDifference {
    int first = 0, last = -1;  // into the full lane's answer; empty: no token
};

FirstDifference first_difference(const std::vector<ShownAnswer>& answers) {
    const std::vector<int>& reference = answers.front().answer.tokens;
    FirstDifference part{0, static_cast<int>(reference.size()) - 1};
    int first = static_cast<int>(reference.size());
    for (const ShownAnswer& other : answers) {
        const auto [a, b] = std::mismatch(reference.begin(), reference.end(), other.answer.tokens.begin(),
                                          other.answer.tokens.end());
        if (a != reference.end() || b != other.answer.tokens.end())
            first = std::min(first, static_cast<int>(a - reference.begin()));
    }
    if (first <= part.last) part.first = first;
    return part;
}

/// Returns the words of the answer's part, if they stand in the text before `end`.
std::optional<TokenSpan> words_in_text(const AppState& app, const std::vector<int>& answer,
                                       FirstDifference part, int end) {
    const RunInfo& run = app.run.history.run();
    // From the beginning of the word in which the answers part.
    while (part.first > 0 && !run.token_bytes[to_index(answer[to_index(part.first)])].starts_with(' ') &&
           is_word(run.token_bytes[to_index(answer[to_index(part.first - 1)])]))
        --part.first;
    std::string words;
    for (int i = part.first; i <= part.last; ++i) {
        const std::string& token = run.token_bytes[to_index(answer[to_index(i)])];
        if (!words.empty() && (!is_word(token) || token.starts_with(' '))) break;
        if (is_word(token)) words += token;
    }
    const std::string_view wanted = bare(words);
    constexpr std::size_t kLeast = 3;  // bytes; shorter ones stand everywhere
    if (wanted.size() < kLeast) return std::nullopt;
    const std::optional<TokenSpan> found = find_span(app.run.history, 0, wanted);
    return found && found->last < end ? found : std::nullopt;
}

/// Completes a position to the words around it that are attended nearly as much.
TokenSpan words_around(const RunHistory& history, const std::vector<float>& most, int peak, int end) {
    constexpr float kShare = 0.4f;
    constexpr int kMost = 8;
    TokenSpan span{peak, peak};
    const auto joins = [&](int p) {
        return p >= 0 && p < end && span.size() < kMost && is_word(token_text(history, 0, p));
    };
    const auto is_high = [&](int p) { return most[to_index(p)] >= kShare * most[to_index(peak)]; };
    const auto begins_word = [&](int p) { return token_text(history, 0, p).starts_with(' '); };
    while (joins(span.first - 1) && (is_high(span.first - 1) || !begins_word(span.first))) --span.first;
    while (joins(span.last + 1) && (is_high(span.last + 1) || !begins_word(span.last + 1))) ++span.last;
    return span;
}

/// Returns the position where the question begins.
int question_begin(const AppState& app, int first_row) {
    const std::string question = last_sentence(asked(app, first_row));
    std::string text;
    for (int p = first_row; p >= 0; --p) {
        text = token_text(app.run.history, 0, p) + text;
        if (text.size() >= question.size() && text.find(question) != std::string::npos) return p;
    }
    return first_row;
}

}  // namespace

std::optional<TokenSpan> telling_words(const AppState& app, const std::vector<ShownAnswer>& answers) {
    constexpr int kSinks = 4, kTail = 4;
    if (answers.empty() || answers.front().answer.tokens.empty()) return std::nullopt;
    const RunHistory& history = app.run.history;
    const int first_row = first_answer_row(app, answers);
    const int question = question_begin(app, first_row);
    // A text of one sentence is a question as a whole.
    const int end = question > 2 * kSinks ? question : first_row + 1 - kTail;
    const FirstDifference part = first_difference(answers);
    if (const auto words = words_in_text(app, answers.front().answer.tokens, part, end)) return words;
    std::vector<float> sums(to_index(std::max(end, 0)), 0);
    for (int i = part.first; i <= part.last && first_row + i <= app.run.last_row(); ++i) {
        std::vector<float> most(sums.size(), 0);
        attention_values_of_all(history, full_lane(app), first_row + i,
                                [&](int, int, std::span<const float> values) {
                                    for (std::size_t p = 0; p < most.size() && p < values.size(); ++p)
                                        if (values[p] > most[p]) most[p] = values[p];
                                });
        for (std::size_t p = 0; p < sums.size(); ++p) sums[p] += most[p];
    }
    int peak = -1;
    for (int p = kSinks; p < end; ++p)
        if (is_word(token_text(history, 0, p)) && sums[to_index(p)] > 0 &&
            (peak < 0 || sums[to_index(p)] > sums[to_index(peak)]))
            peak = p;
    if (peak < 0) return std::nullopt;
    return words_around(history, sums, peak, end);
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
    if (story.complete) story.explained = explained_lane(app, story.lanes, known);
    story.sentence = no_answers
                         ? "The lanes of this trace followed lane 0, so it does not hold their own answers."
                         : sentence_of(app, story, known);
    story.warns = story.explained >= 0;
    story.given_back = given_back_text(app, story);
    return story;
}

}  // namespace keyhole
