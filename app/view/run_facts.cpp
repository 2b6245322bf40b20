#include "app/view/run_facts.h"

#include "app/view/page.h"
#include "engine/analysis/compare.h"
#include "engine/analysis/run_rows.h"
#include "engine/analysis/watched_span.h"
#include "engine/base/index.h"
#include "engine/policy/lane_names.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace keyhole {

std::vector<SettingsFrom> settings_of(const RunHistory& history, int lane) {
    std::vector<SettingsFrom> all;
    std::vector<LaneSpec> specs;
    std::shared_ptr<const LaneInfo> seen;
    for (const auto& step : history.steps()) {
        const LaneRecord* record = history.lane_record(step->row, lane_of_row(history, lane, step->row));
        if (record == nullptr || record->info == seen) continue;  // records between two changes share it
        seen = record->info;
        LaneSpec spec = parse_stored_lane_spec(seen->spec);
        if (!specs.empty() && same_settings(spec, specs.back())) continue;
        all.push_back({step->row, "", seen->effective});
        specs.push_back(std::move(spec));
    }
    const std::vector<std::string> names = lane_names(specs);
    for (std::size_t i = 0; i < all.size(); ++i) all[i].name = paper_name(names[i]);
    return all;
}

namespace {

/// Returns the lane to which the others are compared: the first that evicts nothing, else the first.
int full_lane_of(const RunHistory& history, const std::vector<ShownLane>& lanes) {
    for (const ShownLane& lane : lanes) {
        const LaneRecord* record =
            history.lane_record(history.lanes()[to_index(lane.lane)].first_row, lane.lane);
        if (record != nullptr && !record->info->policy.evicts()) return lane.lane;
    }
    return lanes.front().lane;
}

std::string text_of_span(const RunHistory& history, int lane, TokenSpan span) {
    std::string text;
    for (int p = span.first; p <= span.last; ++p) text += token_text(history, lane, p);
    return page_text(without_blanks(text));
}

/// Returns the words that explain the answers: the right answer where it stands in the prompt, else those
/// that the full lane reads most.
std::optional<TokenSpan> words_of(const RunFacts& facts) {
    const RunHistory& history = facts.history;
    if (facts.source.view.watched) return facts.source.view.watched;
    if (const std::string& right = facts.source.right_answer; !right.empty())
        if (const auto found = find_span(history, 0, right); found && found->last < history.n_prompt())
            return found;
    if (facts.answers.empty()) return std::nullopt;
    return telling_words(history, facts.answers, history.run().prompt, facts.story.first_row, facts.full);
}

StoryLane story_lane_of(const RunFacts& facts, std::size_t i) {
    const RunHistory& history = facts.history;
    const int lane = facts.known[i], row = facts.story.first_row;
    StoryLane out;
    out.lane = static_cast<int>(i);
    // The answer is of the settings with which the lane read the prompt.
    const std::vector<SettingsFrom> settings = settings_of(history, lane);
    out.name = settings.size() > 1
                   ? settings.front().name
                   : paper_name(facts.lanes[i].name.substr(facts.lanes[i].name.find(' ') + 1));
    const int n_kv = history.layout(lane).n_kv_heads();
    out.keeps = kept_in_record(history, lane, row);
    for (const ShownAnswer& shown : facts.answers)
        if (shown.lane == out.lane) out.shown = shown;
    if (facts.words && facts.words->last <= row)
        for (int g = 0; g < n_kv; ++g)
            out.holds.push_back(span_share(history, lane, g, *facts.words, row) == 1);
    out.n_holding = static_cast<int>(std::count(out.holds.begin(), out.holds.end(), true));
    for (int k = 1; k <= facts.story.n_rows; ++k) {
        const int token = own_choice(history, lane, row + k);
        out.rows.push_back(token < 0 ? "" : page_text(history.run().token_display[to_index(token)]));
    }
    out.is_fed = i > 0 && history.run().start.follow;
    out.is_merged = n_kv < history.run().layout.n_kv_heads();
    return out;
}

/// Adds what each lane answers with the settings with which it read the prompt: the rest of the page is of
/// these. An answer with settings that a lane got later is none of this run; what the lane chose in it stands
/// for it.
void add_answers(RunFacts& facts) {
    for (std::size_t i = 0; i < facts.known.size() && !facts.source.answers.empty(); ++i) {
        const RunHistory::Lane& lane = facts.history.lanes()[to_index(facts.known[i])];
        const LaneRecord* first = facts.history.lane_record(lane.first_row, facts.known[i]);
        ShownAnswer out;
        out.lane = static_cast<int>(i);
        for (const ShownAnswer& shown : facts.source.answers) {
            const LaneAnswer& answer = shown.answer;
            if (answer.lane_id != lane.id || (!answer.complete && answer.tokens.empty())) continue;
            const bool is_of_run =
                answer.turn >= 0 || answer.spec.empty() || first == nullptr ||
                same_results(parse_stored_lane_spec(answer.spec), parse_stored_lane_spec(first->info->spec));
            const auto own = is_of_run ? std::optional(answer) : own_answer(facts.history, facts.known[i]);
            if (own)
                out.answer = *own;
            else
                facts.other_settings = out.lane;
        }
        facts.answers.push_back(std::move(out));
    }
    const bool of_turn = !facts.answers.empty() && facts.answers.front().answer.turn >= 0;
    if (!facts.answers.empty()) mark_answers(facts.answers, of_turn ? "" : facts.source.right_answer);
}

void add_story(RunFacts& facts) {
    const RunHistory& history = facts.history;
    Story& story = facts.story;
    const std::vector<ShownAnswer>& answers = facts.answers;
    story.first_row = std::clamp(history.n_prompt() - 1, history.steps().front()->row, history.last_row());
    story.question = page_text(last_sentence(history.run().prompt));
    for (const ShownAnswer& shown : answers)
        story.n_rows = std::max(story.n_rows, static_cast<int>(shown.answer.tokens.size()));
    if (answers.empty()) story.n_rows = Story::kMostRows;
    story.n_rows =
        std::clamp(history.last_row() - story.first_row + 1, 1, std::min(story.n_rows, Story::kMostRows));
    facts.words = words_of(facts);
    if (facts.words) story.words = text_of_span(history, facts.lanes.front().lane, *facts.words);
    for (std::size_t i = 0; i < facts.lanes.size(); ++i) story.lanes.push_back(story_lane_of(facts, i));
    story.complete =
        answers.size() == facts.lanes.size() &&
        std::all_of(answers.begin(), answers.end(), [](const auto& shown) { return shown.answer.complete; });
    const bool known = !answers.empty() && answers.front().mark != ShownAnswer::Mark::none;
    if (!story.complete) {
        story.sentence =
            answers.empty() ? "The lanes followed lane 0, so their own answers are not in this page."
            : facts.other_settings >= 0
                ? fmt::format("Lane {} has other settings by now, so its answer is not in this page.",
                              facts.other_settings)
                : "Not all lanes had answered.";
    } else if (facts.lanes.size() > 1) {
        story.explained = explained_lane(story.lanes, facts.source.focus.index, known);
        story.warns = story.explained >= 0;
        story.sentence = page_text(story_sentence(story, known));
    }
}

/// Sorts the heads by what the full lane reads of the words while it answers, or by the head's place.
void add_heads(RunFacts& facts) {
    const RunHistory& history = facts.history;
    const ModelConfig& config = history.run().config;
    facts.telling.resize(to_index(config.n_layers) * to_index(config.n_heads));
    std::iota(facts.telling.begin(), facts.telling.end(), 0);
    const int last = facts.story.first_row + facts.story.n_rows - 1;
    if (facts.words) {
        const std::vector<double> sums =
            attention_on(history, facts.full, *facts.words, facts.story.first_row, last);
        std::ranges::stable_sort(facts.telling,
                                 [&](int a, int b) { return sums[to_index(a)] > sums[to_index(b)]; });
    } else if (const auto place = opening_head(history, facts.known.back(), std::nullopt)) {
        std::swap(facts.telling[0], facts.telling[to_index(place->layer * config.n_heads + place->head)]);
    }
    facts.focus = {facts.telling.front() / config.n_heads, facts.telling.front() % config.n_heads};
}

}  // namespace

RunFacts run_facts(const PictureSource& source) {
    RunFacts facts{source, *source.history, shown_lanes(*source.history), {}, {}, -1, {}, {}, 0, {}, {}};
    for (const ShownLane& lane : facts.lanes) facts.known.push_back(lane.lane);
    facts.full = full_lane_of(facts.history, facts.lanes);
    add_answers(facts);
    add_story(facts);
    add_heads(facts);
    return facts;
}

}  // namespace keyhole
