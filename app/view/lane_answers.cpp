#include "app/view/lane_answers.h"

#include "engine/analysis/compare.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/model_name.h"
#include "engine/base/utf8.h"
#include "engine/policy/lane_names.h"

#include <algorithm>
#include <span>

namespace keyhole {

namespace {

std::string text_of(const RunInfo& run, std::span<const int> tokens) {
    std::string text;
    for (const int token : tokens)
        if (token >= 0 && to_index(token) < run.token_bytes.size()) text += run.token_bytes[to_index(token)];
    return text;
}

/// Returns whether the text ends within a character.
bool ends_within_character(std::string_view text) {
    std::size_t n = 0;
    while (!text.empty() && (n = utf8_length(text)) > 0) text.remove_prefix(n);
    return !text.empty() && text.size() < 4;
}

/// Returns an answer's tokens as words. Tokens that hold one character together are one word.
std::vector<AnswerWord> words_of(const RunInfo& run, const ShownAnswer& shown) {
    std::vector<AnswerWord> words;
    bool goes_on = false;
    for (std::size_t i = 0; i < shown.answer.tokens.size(); ++i) {
        std::string text = text_of(run, std::span(shown.answer.tokens).subspan(i, 1));
        if (goes_on)
            words.back() = {words.back().text + text, words.back().differs || shown.differs[i]};
        else
            words.push_back({text, shown.differs[i]});
        goes_on = ends_within_character(words.back().text);
    }
    for (AnswerWord& word : words)
        for (std::size_t at = 0; (at = word.text.find('\n', at)) != std::string::npos;)
            word.text.replace(at, 1, "↵");
    return words;
}

}  // namespace

namespace {

/// Returns where an answer to the prompt ends: as the run had it, if it did.
AnswerEnd answer_end_of(const RunHistory& history) {
    return history.run().start.answer_end.value_or(AnswerEnd());
}

/// Returns the answer that a lane's tokens after the prompt begin.
LaneAnswer answer_of_tokens(const RunHistory& history, int lane, const AnswerEnd& end) {
    const std::vector<int>& tokens = history.lanes()[to_index(lane)].tokens;
    const std::size_t first = std::min(tokens.size(), to_index(history.n_prompt()));
    const auto own = std::span(tokens).subspan(
        first, std::min(tokens.size() - first, static_cast<std::size_t>(end.max_tokens)));
    LaneAnswer answer =
        answer_from([&](std::span<const int> some) { return text_of(history.run(), some); }, own, end);
    answer.lane_id = history.lanes()[to_index(lane)].id;
    const LaneRecord* record = history.lane_record(history.lanes()[to_index(lane)].first_row, lane);
    if (record != nullptr) answer.spec = record->info->spec;
    return answer;
}

}  // namespace

LaneAnswer answer_in_record(const RunHistory& history, int lane) {
    LaneAnswer answer = answer_of_tokens(history, lane, answer_end_of(history));
    answer.complete = true;
    return answer;
}

std::optional<LaneAnswer> own_answer(const RunHistory& history, int lane) {
    const RunHistory::Lane& of = history.lanes()[to_index(lane)];
    const AnswerEnd end = answer_end_of(history);
    LaneAnswer answer = answer_of_tokens(history, lane, end);
    const int n = history.n_prompt(), n_read = static_cast<int>(of.tokens.size()) - n;
    for (int i = 0; i < std::min(n_read, end.max_tokens); ++i)
        if (const int own = own_choice(history, lane, n + i); own >= 0 && own != of.tokens[to_index(n + i)])
            return std::nullopt;
    answer.cut = !answer.complete && n_read >= end.max_tokens;
    answer.complete = answer.complete || answer.cut || of.ended;
    return answer.complete ? std::optional(answer) : std::nullopt;
}

std::vector<ShownAnswer> answers_in_record(const RunHistory& history) {
    std::vector<ShownAnswer> answers;
    if (history.run().start.follow) return answers;
    for (const LaneRecord& record : history.steps().back()->lanes) {
        ShownAnswer shown;
        shown.lane = static_cast<int>(answers.size());
        shown.answer = answer_in_record(history, history.lane_from_id(record.info->id).value());
        answers.push_back(std::move(shown));
    }
    return answers;
}

void mark_answers(std::vector<ShownAnswer>& answers, const std::string& right) {
    for (ShownAnswer& shown : answers) {
        const std::vector<int>& own = shown.answer.tokens;
        const std::vector<int>& reference = answers.front().answer.tokens;
        shown.differs.clear();
        for (std::size_t i = 0; i < own.size(); ++i)
            shown.differs.push_back(i < reference.size() ? own[i] != reference[i]
                                                         : answers.front().answer.complete);
        if (right.empty() || !shown.answer.failure.empty()) continue;
        if (answer_holds(shown.answer.text, right))
            shown.mark = ShownAnswer::Mark::right;
        else if (shown.answer.complete)
            shown.mark = ShownAnswer::Mark::wrong;
    }
}

AnswersFigure answers_figure(const RunInfo& run, const std::vector<ShownAnswer>& answers,
                             const std::vector<std::string>& specs, const std::string& right) {
    AnswersFigure figure;
    figure.texts.title = "What each lane answers";
    figure.texts.subtitle = model_name(run.model_path);
    if (!right.empty() && (answers.empty() || answers.front().answer.turn < 0))
        figure.texts.subtitle += fmt::format(" · the right answer has “{}”", right);
    const bool of_turn = !answers.empty() && answers.front().answer.turn >= 0;
    figure.texts.caption =
        of_turn
            ? "What a lane says by itself after the last turn, with what it stored then, whatever the run "
              "feeds it."
            : "What a lane says by itself after the prompt, with its settings from the prompt on, whatever "
              "the run feeds it.";
    std::vector<LaneSpec> lanes;
    for (const std::string& spec : specs) lanes.push_back(parse_stored_lane_spec(spec));
    const std::vector<std::string> names = lane_names(lanes);
    for (const ShownAnswer& shown : answers) {
        AnswerLine line;
        const std::string& spec = specs.at(to_index(shown.lane));
        line.lane = fmt::format("{} {}", shown.lane, names[to_index(shown.lane)]);
        line.settings = spec;
        line.mark = shown.mark;
        line.words = words_of(run, shown);
        if (!shown.answer.failure.empty())
            line.note = shown.answer.failure;
        else if (!shown.answer.complete || shown.answer.cut)
            line.note = "…";
        else if (line.words.empty())
            line.note = kSaysNothing;
        figure.lines.push_back(std::move(line));
    }
    return figure;
}

}  // namespace keyhole
