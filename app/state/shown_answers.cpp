#include "app/state/shown_answers.h"

#include "engine/analysis/watched_span.h"
#include "engine/base/index.h"
#include "engine/export/run_json.h"

#include <algorithm>

namespace keyhole {

namespace {

/// Returns what a lane of a trace chose after the prompt.
LaneAnswer answer_in_trace(const RunHistory& history, int lane) {
    const std::vector<int>& tokens = history.lanes()[to_index(lane)].tokens;
    const std::size_t first = std::min(tokens.size(), to_index(history.n_prompt()));
    const AnswerEnd end;
    const auto own = std::span(tokens).subspan(
        first, std::min(tokens.size() - first, static_cast<std::size_t>(end.max_tokens)));
    LaneAnswer answer =
        answer_from([&](std::span<const int> some) { return text_of_tokens(history.run(), some); }, own, end);
    answer.complete = true;
    return answer;
}

}  // namespace

std::vector<ShownAnswer> shown_answers(const AppState& app) {
    std::vector<ShownAnswer> list;
    if (!app.run.has_steps()) return list;
    const RunHistory& history = app.run.history;
    if (!app.run.live() && history.run().start.follow) return list;
    // A trace may be of another prompt.
    const std::string known = history.run().prompt == app.run.setup.prompt ? app.run.setup.guide.answer : "";
    for (int lane = 0; lane < app.run.lane_editor.n_lanes(); ++lane) {
        ShownAnswer shown;
        shown.lane = lane;
        const std::optional<int> recorded = app.run.history_lane(lane);
        if (!app.run.live() && recorded) {
            shown.answer = answer_in_trace(history, *recorded);
        } else if (app.run.status.answers != nullptr) {
            const std::vector<LaneAnswer>& own = *app.run.status.answers;
            // A lane that has just joined has no record yet, and no id that is known here.
            if (std::ssize(own) == app.run.lane_editor.n_lanes()) {
                shown.answer = own[to_index(lane)];
            } else if (recorded) {
                const int id = history.lanes()[to_index(*recorded)].id;
                for (const LaneAnswer& answer : own)
                    if (answer.lane_id == id) shown.answer = answer;
            }
        }
        list.push_back(std::move(shown));
    }
    for (ShownAnswer& shown : list) {
        const std::vector<int>& own = shown.answer.tokens;
        const std::vector<int>& reference = list.front().answer.tokens;
        for (std::size_t i = 0; i < own.size(); ++i)
            shown.differs.push_back(i < reference.size() ? own[i] != reference[i]
                                                         : list.front().answer.complete);
        if (known.empty() || !shown.answer.failure.empty()) continue;
        if (answer_holds(shown.answer.text, known))
            shown.mark = ShownAnswer::Mark::right;
        else if (shown.answer.complete)
            shown.mark = ShownAnswer::Mark::wrong;
    }
    return list;
}

std::string answers_caption(const AppState& app, const std::vector<ShownAnswer>& answers) {
    if (answers.size() < 2) return {};
    const auto name = [&](int lane) {
        return fmt::format("lane {} ({})", lane,
                           preset_name(app.run.lane_editor.lanes()[to_index(lane)].policy.preset));
    };
    const bool all = std::all_of(answers.begin(), answers.end(),
                                 [](const ShownAnswer& shown) { return shown.answer.complete; });
    if (!all) return "The lanes are still answering.";
    std::vector<const ShownAnswer*> other;
    for (const ShownAnswer& shown : answers)
        if (shown.mark == ShownAnswer::Mark::wrong ||
            (shown.mark == ShownAnswer::Mark::none && shown.answer.tokens != answers.front().answer.tokens))
            other.push_back(&shown);
    if (other.empty()) return "All lanes give the same answer.";
    const ShownAnswer& first = *other.front();
    std::string text =
        fmt::format("{} {}", name(first.lane),
                    first.mark == ShownAnswer::Mark::wrong ? "is wrong" : "answers differently");
    text.front() = 'L';
    const std::optional<int> recorded = app.run.history_lane(first.lane);
    if (!app.view.watched || !recorded) return text + ".";
    const SpanLifetime held = span_lifetime(app.run.history, *recorded, *app.view.watched);
    if (held.n_heads_with_all == held.n_heads) return text + ".";
    return text + fmt::format(": {} of {} KV heads {} the watched words.",
                              held.n_heads_with_all == 0 ? "none" : std::to_string(held.n_heads_with_all),
                              held.n_heads, held.n_heads_with_all == 1 ? "holds" : "hold");
}

}  // namespace keyhole
