#include "engine/session/compute_counterfactual.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/policy/next_token_measures.h"
#include "engine/policy/spec_copies.h"
#include "engine/session/answer_choice.h"
#include "engine/session/lane_fault.h"
#include "engine/session/lane_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

namespace keyhole {

namespace {

using EvictionsByRow = std::map<int, std::vector<Eviction>>;

/// Replays a lane's text up to a row in a temporary copy that evicts only what `gone` lists, by the row after
/// which. Its other settings are the lane's, at the rows at which the lane had them. Returns the copy, which
/// evicts nothing more.
Lane replay_in_copy(const LaneRunner& runner, const Lane& asked, const Sampling& sampling, int at_row,
                    const EvictionsByRow& gone, const ProgressPart& progress) {
    const RunContext& context = runner.context();
    Lane copy = runner.new_lane(LaneInfo{}, without_eviction(asked.initial_spec));
    Lane* const fed = &copy;
    const int n_prompt = context.n_prompt();
    const double n_rows = at_row + 1.0;
    const auto evict_after = [&](int row) {
        const auto found = gone.find(row);
        if (found == gone.end()) return;
        for (const Eviction& e : found->second) copy.cache->evict(e.kv_head, e.position);
    };
    auto next = asked.log.begin();
    const auto change_after = [&](int row) {
        for (; next != asked.log.end() && next->row <= row; ++next)
            if (const auto* set = std::get_if<SetLane>(&next->command))
                runner.apply(copy, SetLane{0, without_eviction(set->spec)}, row);
    };
    const auto feed = [&](int token, int row) {
        progress.report_or_cancel(row / n_rows);
        copy.token = token;
        change_after(row - 1);
        runner.feed(std::span(&fed, 1), row);
        evict_after(row);
    };
    if (copy.policy().prefill == PrefillMode::stepwise) {
        for (int i = 0; i < n_prompt; ++i) feed(context.run->prompt_tokens[to_index(i)], i);
    } else {
        runner.prefill(std::span(&copy, 1), sampling, progress.part(0, n_prompt / n_rows), false);
        evict_after(n_prompt - 1);
    }
    for (int r = n_prompt; r <= at_row; ++r) {
        feed(asked.tokens[to_index(r - n_prompt)], r);
        copy.tokens.push_back(copy.token);
    }
    runner.read_row(copy, sampling, at_row);
    change_after(at_row);
    throw_if_failed(copy);
    return copy;
}

/// Returns a copy of the lane as it is, which evicts nothing more.
Lane copy_that_keeps(const LaneRunner& runner, const Lane& lane, int row) {
    Lane copy = lane.copy();
    runner.apply(copy, SetLane{0, without_eviction(lane.spec)}, row);
    return copy;
}

/// Continues the copies by their own choices to the end of their answers. Returns these, in order.
std::vector<LaneAnswer> continued(const LaneRunner& runner, std::span<Lane> copies, const Sampling& sampling,
                                  int row, const ProgressPart& progress) {
    const RunContext& context = runner.context();
    const AnswerEnd& end = *context.start.answer_end;
    std::vector<LaneAnswer> answers(copies.size());
    const auto n_given = static_cast<std::ptrdiff_t>(copies.front().tokens.size());
    for (int n = 0;; ++n, ++row) {
        progress.report_or_cancel(std::min(1.0, double(n) / end.max_tokens));
        std::vector<Lane*> open;
        for (std::size_t i = 0; i < copies.size(); ++i) {
            if (answers[i].complete) continue;
            Lane& copy = copies[i];
            answers[i] = answer_with_choice(context, end, copy,
                                            {copy.tokens.begin() + n_given, copy.tokens.end()}, row);
            if (answers[i].complete) continue;
            copy.token = copy.predicted;
            open.push_back(&copy);
        }
        if (open.empty()) return answers;
        runner.feed(open, row + 1);
        for (Lane* copy : open) {
            copy->tokens.push_back(copy->token);
            runner.read_row(*copy, sampling, row + 1);
        }
    }
}

/// Throws an Error if there is no answer for these tokens after this row.
void check(const CounterfactualRequest& asked, const Lane& lane, const RunContext& context) {
    const int first_row = context.n_prompt() - 1;
    if (asked.n_tokens < 1 || asked.position < 0 || asked.last() > asked.row)
        fail(ErrorCode::wrong_use, "there is no token {} yet; the newest one is {}",
             asked.position < 0 ? asked.position : asked.last(), asked.row);
    // Check the lane's whole history: what it stores was computed by earlier rows, which attended
    // differently.
    const HeadGrid grid = head_grid(lane.model->layout());
    const auto plain = [&](const LaneSpec& spec) {
        return attends_plainly(resolve(spec.policy, context.n_prompt(), context.start.n_generate, grid));
    };
    bool always = plain(lane.initial_spec);
    for (const LoggedCommand& applied : lane.log)
        if (const auto* set = std::get_if<SetLane>(&applied.command)) always = always && plain(set->spec);
    if (const bool now = plain(lane.spec); !now || !always)
        fail(ErrorCode::unsupported,
             "lane {} {}; what it would say with a token back is known for lanes that never did", asked.lane,
             now ? "hid tokens or moved keys to other positions in earlier steps"
                 : "hides tokens or moves keys to other positions");
    if (const int end = first_row + static_cast<int>(lane.tokens.size()); end < asked.row)
        fail(ErrorCode::wrong_use, "lane {} ended its text at step {}; rewind to {} to ask", asked.lane, end,
             end);
}

}  // namespace

Counterfactual compute_counterfactual(const LaneRunner& runner, const SessionState& state,
                                      CounterfactualRequest asked, const ProgressPart& progress) {
    const RunContext& context = runner.context();
    if (asked.row < 0) asked.row = state.row;
    if (asked.row > state.row || asked.row < context.n_prompt() - 1)
        fail(ErrorCode::wrong_use, "step {} is out of range; choose {} to {}", asked.row,
             context.n_prompt() - 1, state.row);
    const Lane& lane = state.lane_at(asked.lane);
    check(asked, lane, context);

    EvictionsByRow left, left_with;  // left_with: without these tokens
    std::set<int> heads;
    for (const auto& gone : lane.left)
        for (const Eviction& e : *gone) {
            left[e.row].push_back(e);
            if (e.position < asked.position || e.position > asked.last())
                left_with[e.row].push_back(e);
            else if (e.row <= asked.row)
                heads.insert(e.kv_head);
        }
    const bool is_past = asked.row < state.row;
    if (heads.empty())
        fail(ErrorCode::wrong_use, "{} of lane {} {} held everywhere{}", asked.text(), asked.lane,
             asked.n_tokens == 1 ? "is" : "are", is_past ? fmt::format(" after step {}", asked.row) : "");

    const bool answers = context.start.answer_end.has_value();
    const ProgressPart replays = progress.part(0, answers ? 0.9 : 1);
    // The newest row's state is known; that of an earlier row is replayed too.
    const LaneRunner quiet = runner.without_values();
    const auto replay = [&](const EvictionsByRow& gone, const ProgressPart& part) {
        return replay_in_copy(quiet, lane, state.sampling, asked.row, gone, part);
    };
    std::vector<Lane> copies;
    copies.push_back(is_past ? replay(left, replays.part(0, 0.5)) : copy_that_keeps(quiet, lane, asked.row));
    copies.push_back(replay(left_with, is_past ? replays.part(0.5, 0.5) : replays));
    const std::vector<float> as_it_is = copies[0].log_probs, with = copies[1].log_probs;
    Counterfactual result;
    result.lane_id = lane.id;
    result.position = asked.position;
    result.n_tokens = asked.n_tokens;
    result.row = asked.row;
    result.kv_heads.assign(heads.begin(), heads.end());
    for (const int id : top_k(with, context.start.n_top)) result.with.push_back({id, with[to_index(id)]});
    result.kl = kl_divergence(as_it_is, with);
    if (!result.with.empty())  // a distribution with NaN has no best token
        result.log_prob_as_is = as_it_is[to_index(result.with.front().id)];
    if (answers) {
        std::vector<LaneAnswer> said =
            continued(quiet, copies, state.sampling, asked.row, progress.part(0.9, 0.1));
        result.answer_as_is = std::move(said[0]);
        result.answer_with = std::move(said[1]);
    }
    return result;
}

}  // namespace keyhole
