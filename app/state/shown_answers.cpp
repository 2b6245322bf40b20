#include "app/state/shown_answers.h"

#include "engine/analysis/watched_span.h"
#include "engine/base/index.h"

#include <algorithm>

namespace keyhole {

namespace {

/// Returns the first answer that is wrong, or another one than lane 0's where the right one is not known.
std::vector<ShownAnswer>::const_iterator first_other(const std::vector<ShownAnswer>& answers) {
    return std::find_if(answers.begin(), answers.end(), [&](const ShownAnswer& shown) {
        return shown.mark == ShownAnswer::Mark::wrong ||
               (shown.mark == ShownAnswer::Mark::none &&
                shown.answer.tokens != answers.front().answer.tokens);
    });
}

}  // namespace

std::string right_answer(const AppState& app) {
    // A trace may be of another prompt.
    const bool same = app.run.has_steps() && app.run.history.run().prompt == app.run.setup.prompt;
    return same ? app.run.setup.guide.answer : "";
}

std::vector<ShownAnswer> shown_answers(const AppState& app) {
    std::vector<ShownAnswer> list;
    if (!app.run.has_steps()) return list;
    const RunHistory& history = app.run.history;
    if (!app.run.live() && history.run().start.follow) return list;
    const std::string known = right_answer(app);
    for (int lane = 0; lane < app.run.lane_editor.n_lanes(); ++lane) {
        ShownAnswer shown;
        shown.lane = lane;
        const std::optional<int> recorded = app.run.history_lane(lane);
        if (!app.run.live() && recorded) {
            shown.answer = answer_in_record(history, *recorded);
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
    // The known answer is that to the prompt.
    mark_answers(list, answered_turn(list) < 0 ? known : "");
    return list;
}

int answered_turn(const std::vector<ShownAnswer>& answers) {
    return answers.empty() ? -1 : answers.front().answer.turn;
}

bool has_other_answer(const std::vector<ShownAnswer>& answers) {
    return std::all_of(answers.begin(), answers.end(),
                       [](const ShownAnswer& shown) { return shown.answer.complete; }) &&
           first_other(answers) != answers.end();
}

std::string answers_caption(const AppState& app, const std::vector<ShownAnswer>& answers) {
    if (answers.size() < 2) return {};
    const auto name = [&](int lane) {
        return fmt::format("lane {} ({})", lane, app.run.lane_editor.name(lane));
    };
    const bool all = std::all_of(answers.begin(), answers.end(),
                                 [](const ShownAnswer& shown) { return shown.answer.complete; });
    if (!all) return "The lanes are still answering.";
    const auto other = first_other(answers);
    if (other == answers.end()) return "All lanes give the same answer.";
    const ShownAnswer& first = *other;
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
