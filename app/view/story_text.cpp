#include "app/view/story_text.h"

#include "engine/analysis/run_rows.h"
#include "engine/analysis/watched_span.h"
#include "engine/base/counted.h"
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

/// Returns whether a token has a letter or a digit. Bytes beyond ASCII count as letters.
bool has_letter(std::string_view token) {
    return std::any_of(token.begin(), token.end(), [](char c) {
        const auto u = static_cast<unsigned char>(c);
        return u >= 0x80 || std::isalnum(u) != 0;
    });
}

/// Returns a lane's name, with its number where another lane has the same.
std::string name_among(const std::vector<StoryLane>& lanes, const StoryLane& lane) {
    const auto n = std::ranges::count(lanes, lane.name, &StoryLane::name);
    return n > 1 ? fmt::format("lane {} {}", lane.lane, lane.name) : lane.name;
}

/// Returns what the sentence adds on the other lanes: "Right: TOVA (16 heads). Wrong too: Window (0)."
std::string others_text(const std::vector<StoryLane>& lanes, int explained, bool known) {
    bool has_unit = false;  // said once
    const auto listed = [&](bool wanted) {
        std::string list;
        for (const StoryLane& lane : lanes) {
            if (lane.lane == explained || lane.lane == 0 || lane.holds.empty()) continue;
            const bool is_right = known ? lane.shown.mark == Mark::right
                                        : lane.shown.answer.tokens == lanes.front().shown.answer.tokens;
            if (is_right != wanted) continue;
            list +=
                fmt::format("{}{} ({}{})", list.empty() ? "" : ", ", name_among(lanes, lane), lane.n_holding,
                            std::exchange(has_unit, true) ? ""
                            : lane.n_holding == 1         ? " head"
                                                          : " heads");
        }
        return list;
    };
    const std::string right = listed(true), wrong = listed(false);
    std::string text;
    if (!right.empty()) text += fmt::format(" Right: {}.", right);
    if (!wrong.empty()) text += fmt::format(" Wrong too: {}.", wrong);
    return text;
}

std::string quoted_answer(const StoryLane& lane) {
    const std::string_view text = without_blanks(lane.shown.answer.text);
    return text.empty() ? "nothing" : fmt::format("“{}”", text);
}

/// Returns what besides the policy changes what a lane answers, as a sentence; empty: nothing.
std::string other_cause(const StoryLane& lane) {
    const int n = lane.shown.answer.n_by_hand;
    if (n > 0) return fmt::format(" You evicted {} from it by hand.", counted(n, "token"));
    return lane.is_merged ? " Its KV heads are merged: without training, that damages the model." : "";
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
    if (const std::string cause = other_cause(lane); !cause.empty())
        return fmt::format("{} {}.{} When it answered, {} of {} heads had “{}”.{}", lane.name, as_ever, cause,
                           held, n, story.words, others);
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
    if (!evicts) return "Every lane held every token when it answered, so all give the same answer.";
    std::string held;
    for (const StoryLane& lane : story.lanes)
        if (lane.lane > 0 && !lane.holds.empty())
            held += fmt::format("{}{} {}", held.empty() ? "" : ", ", lane.name, lane.n_holding);
    std::string text = known ? "Every lane is right." : "All lanes give the same answer.";
    if (!held.empty()) {
        const auto counted = std::find_if(story.lanes.begin(), story.lanes.end(),
                                          [](const StoryLane& l) { return !l.holds.empty(); });
        text += fmt::format(" Heads of {} that held “{}”: {}.", counted->holds.size(), story.words, held);
    }
    return text;
}

}  // namespace

std::string paper_name(const std::string& lane_name) {
    const std::string preset = lane_name.substr(0, lane_name.find(' '));
    for (const PresetRow& row : presets())
        if (row.name == preset) return paper_name_of(row) + lane_name.substr(preset.size());
    return lane_name;
}

std::string last_sentence(const std::string& text) {
    std::string_view rest = without_blanks(text);
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
    const std::string last(without_blanks(rest.substr(begin)));
    // "Answer:" asks nothing: the question is what stands before it.
    const bool is_label = last.ends_with(':') && last.find(' ') == std::string::npos;
    return is_label && begin > 0 ? last_sentence(std::string(rest.substr(0, begin))) : last;
}

std::string_view without_blanks(std::string_view text) {
    constexpr std::string_view kBlanks = " \n\t\r";
    const std::size_t first = text.find_first_not_of(kBlanks);
    return first == std::string_view::npos ? std::string_view()
                                           : text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

std::string kept_of_text(double mean, int n_tokens) {
    if (mean >= n_tokens) return fmt::format("all {} tokens", n_tokens);
    return fmt::format("{:.0f} of {} tokens, {:.0f} %", mean, n_tokens, 100 * mean / n_tokens);
}

std::string kept_in_record(const RunHistory& history, int lane, int row) {
    const LaneRecord* record = history.lane_record(row, lane_of_row(history, lane, row));
    if (record == nullptr) return "";
    return kept_of_text(double(record->use.stored_tokens) / history.layout(lane).n_kv_heads(), row + 1);
}

std::vector<double> attention_on(const RunHistory& history, int lane, TokenSpan words, int first_row,
                                 int last_row) {
    const ModelConfig& config = history.run().config;
    std::vector<double> sums(to_index(config.n_layers) * to_index(config.n_heads), 0);
    for (int row = first_row; row <= last_row; ++row)
        attention_values_of_all(history, lane, row, [&](int layer, int head, std::span<const float> values) {
            double& sum = sums[to_index(layer) * to_index(config.n_heads) + to_index(head)];
            for (int p = words.first; p <= words.last && to_index(p) < values.size(); ++p)
                if (values[to_index(p)] > 0) sum += values[to_index(p)];
        });
    return sums;
}

std::optional<HeadPlace> telling_head(const RunHistory& history, int lane, TokenSpan watched, int first_row,
                                      int last_row) {
    const std::vector<double> sums = attention_on(history, lane, watched, first_row, last_row);
    const auto best = std::max_element(sums.begin(), sums.end());
    if (best == sums.end() || !(*best > 0)) return std::nullopt;
    const int index = static_cast<int>(best - sums.begin()), n_heads = history.run().config.n_heads;
    return HeadPlace{index / n_heads, index % n_heads};
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
std::optional<TokenSpan> words_in_text(const RunHistory& history, const std::vector<int>& answer,
                                       FirstDifference part, int end) {
    const RunInfo& run = history.run();
    // From the beginning of the word in which the answers part.
    while (part.first > 0 && !run.token_bytes[to_index(answer[to_index(part.first)])].starts_with(' ') &&
           has_letter(run.token_bytes[to_index(answer[to_index(part.first - 1)])]))
        --part.first;
    std::string words;
    for (int i = part.first; i <= part.last; ++i) {
        const std::string& token = run.token_bytes[to_index(answer[to_index(i)])];
        if (!words.empty() && (!has_letter(token) || token.starts_with(' '))) break;
        if (has_letter(token)) words += token;
    }
    const std::string_view wanted = without_blanks(words);
    constexpr std::size_t kLeast = 3;  // bytes; shorter ones stand everywhere
    if (wanted.size() < kLeast) return std::nullopt;
    const std::optional<TokenSpan> found = find_span(history, 0, wanted);
    return found && found->last < end ? found : std::nullopt;
}

/// Completes a position to the words around it that are attended nearly as much.
TokenSpan words_around(const RunHistory& history, const std::vector<float>& most, int peak, int end) {
    constexpr float kShare = 0.4f;
    constexpr int kMost = 8;
    TokenSpan span{peak, peak};
    const auto joins = [&](int p) {
        return p >= 0 && p < end && span.size() < kMost && has_letter(token_text(history, 0, p));
    };
    const auto is_high = [&](int p) { return most[to_index(p)] >= kShare * most[to_index(peak)]; };
    const auto begins_word = [&](int p) { return token_text(history, 0, p).starts_with(' '); };
    while (joins(span.first - 1) && (is_high(span.first - 1) || !begins_word(span.first))) --span.first;
    while (joins(span.last + 1) && (is_high(span.last + 1) || !begins_word(span.last + 1))) ++span.last;
    return span;
}

/// Returns the position where the question begins.
int question_begin(const RunHistory& history, const std::string& asked, int first_row) {
    const std::string question = last_sentence(asked);
    std::string text;
    for (int p = first_row; p >= 0; --p) {
        text = token_text(history, 0, p) + text;
        if (text.size() >= question.size() && text.find(question) != std::string::npos) return p;
    }
    return first_row;
}

}  // namespace

std::string answer_words(const LaneAnswer& answer) {
    if (!answer.failure.empty()) return answer.failure;
    std::string text(without_blanks(answer.text));
    std::replace(text.begin(), text.end(), '\n', ' ');
    if (!answer.complete) return text + "…";
    if (answer.cut) return text + " …";
    return text.empty() ? kSaysNothing : text;
}

SquareGrid square_grid(const KvLayout& of_model, int n) {
    const int layers = std::max(of_model.n_layers(), 1), heads = std::max(n / layers, 1);
    const bool is_deep = layers > 2 * of_model.n_kv_heads() / layers;
    return is_deep ? SquareGrid{layers, heads, false} : SquareGrid{heads, layers, true};
}

std::optional<TokenSpan> telling_words(const RunHistory& history, const std::vector<ShownAnswer>& answers,
                                       const std::string& asked, int first_row, int full) {
    constexpr int kSinks = 4, kTail = 4;
    if (answers.empty() || answers.front().answer.tokens.empty()) return std::nullopt;
    const int question = question_begin(history, asked, first_row);
    // A text of one sentence is a question as a whole.
    const int end = question > 2 * kSinks ? question : first_row + 1 - kTail;
    const FirstDifference part = first_difference(answers);
    if (const auto words = words_in_text(history, answers.front().answer.tokens, part, end)) return words;
    std::vector<float> sums(to_index(std::max(end, 0)), 0);
    for (int i = part.first; i <= part.last && first_row + i <= history.last_row(); ++i) {
        std::vector<float> most(sums.size(), 0);
        attention_values_of_all(history, full, first_row + i, [&](int, int, std::span<const float> values) {
            for (std::size_t p = 0; p < most.size() && p < values.size(); ++p)
                if (values[p] > most[p]) most[p] = values[p];
        });
        for (std::size_t p = 0; p < sums.size(); ++p) sums[p] += most[p];
    }
    int peak = -1;
    for (int p = kSinks; p < end; ++p)
        if (has_letter(token_text(history, 0, p)) && sums[to_index(p)] > 0 &&
            (peak < 0 || sums[to_index(p)] > sums[to_index(peak)]))
            peak = p;
    if (peak < 0) return std::nullopt;
    return words_around(history, sums, peak, end);
}

int explained_lane(const std::vector<StoryLane>& lanes, int focused, bool known) {
    const auto is_wrong = [&](const StoryLane& lane) {
        return lane.lane > 0 && (known ? lane.shown.mark == Mark::wrong
                                       : lane.shown.answer.tokens != lanes.front().shown.answer.tokens);
    };
    int least = -1;
    for (const StoryLane& lane : lanes) {
        if (!is_wrong(lane)) continue;
        if (lane.lane == focused) return lane.lane;
        if (least < 0 || lane.n_holding < lanes[to_index(least)].n_holding) least = lane.lane;
    }
    return least;
}

std::string silent_model_sentence(const std::string& name, const LaneAnswer& answer) {
    if (!answer.complete || !answer.failure.empty() || !without_blanks(answer.text).empty()) return {};
    return fmt::format(
        "{} says nothing: the model ended its text at once, as models do that were not trained on questions. "
        "Give it a sentence to finish or, if it is made for chat, a chat turn.",
        name);
}

std::string story_sentence(const Story& story, bool known) {
    const StoryLane& first = story.lanes.front();
    const bool keeps_all = first.keeps.starts_with("all");
    const std::string silent = keeps_all ? silent_model_sentence(first.name, first.shown.answer) : "";
    if (!silent.empty()) return silent;
    if (const std::string cause = other_cause(first); !cause.empty()) {
        if (known && first.shown.mark == Mark::wrong)
            return fmt::format("{} itself is wrong.{}", first.name, cause);
        if (!known && story.explained >= 0)
            return fmt::format("{} says {}.{} So it is no measure for the others.", first.name,
                               quoted_answer(first), cause);
    }
    if (known && first.shown.mark == Mark::wrong && keeps_all)
        return fmt::format(
            "{} itself is wrong: this model does not know the answer, so eviction is not to blame.",
            first.name);
    return story.explained >= 0 ? wrong_sentence(story, known) : right_sentence(story, known);
}

std::string given_back_sentence(const Story& story, std::string_view answer, bool still) {
    return fmt::format("With “{}” back, {} {} “{}”.", story.words,
                       story.lanes[to_index(story.explained)].name, still ? "still answers" : "answers",
                       without_blanks(answer));
}

}  // namespace keyhole
