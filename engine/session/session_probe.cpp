// Computes the next token that a lane would have if it had never evicted certain tokens, in a temporary copy
// that repeats the lane's other evictions by hand.
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/policy/next_token_measures.h"
#include "engine/session/session_impl.h"

#include <algorithm>
#include <map>
#include <set>

namespace keyhole {

namespace {

/// Returns a spec that keeps everything and attends as the lane does.
LaneSpec keeps_all(const LaneSpec& lane) {
    LaneSpec spec = lane;
    spec.policy = preset_params(Preset::full);
    return spec;
}

bool attends_plainly(const ResolvedPolicy& policy) {
    return policy.positions == Positions::original && policy.dilation == 0 &&
           policy.gap != ResolvedPolicy::Gap::hidden;
}

std::string token_text(int position, int n_tokens) {
    return n_tokens == 1 ? fmt::format("token {}", position)
                         : fmt::format("tokens {} to {}", position, position + n_tokens - 1);
}

}  // namespace

/// Replays a lane's text up to a row in a temporary copy that evicts only what `gone` lists, by the row after
/// which. Returns the log probabilities of the next token.
std::vector<float> Session::Impl::replay_in_copy(const Lane& asked, int at_row,
                                                 const std::map<int, std::vector<Eviction>>& gone) {
    const std::vector<int> tokens = asked.tokens;
    const bool stepwise = asked.initial_spec.policy.prefill == PrefillMode::stepwise;
    const LaneSpec spec = keeps_all(asked.spec);
    lanes.push_back(new_lane(LaneInfo{}, spec));  // `asked` may have moved
    quiet = true;
    std::vector<float> log_probs;
    try {
        const std::size_t last = lanes.size() - 1;
        Lane& copy = lanes[last];
        const auto let_go = [&](int after_row) {
            const auto found = gone.find(after_row);
            if (found == gone.end() || after_row >= at_row) return;
            for (const Eviction& e : found->second) copy.cache->evict(e.kv_head, e.position);
        };
        const double n_rows = at_row + 1.0;
        if (stepwise) {
            for (int i = 0; i < n_prompt(); ++i) {
                report_or_cancel(i / n_rows);
                feed({last}, i, [&](const Lane&) { return run->prompt_tokens[to_index(i)]; });
                let_go(i);
            }
        } else {
            prefill_again(last, n_prompt() / n_rows);
            let_go(n_prompt() - 1);
        }
        for (int r = n_prompt(); r <= at_row; ++r) {
            report_or_cancel(r / n_rows);
            feed({last}, r, [&](const Lane&) { return tokens[to_index(r - n_prompt())]; });
            let_go(r);
        }
        read_logits(copy, at_row);
        log_probs = copy.log_probs;
    } catch (...) {
        lanes.pop_back();
        quiet = false;
        throw;
    }
    lanes.pop_back();
    quiet = false;
    return log_probs;
}

Counterfactual Session::Impl::with_token_restored(int index, int position, int n_tokens, int at_row) {
    if (at_row < 0) at_row = row;
    if (at_row > row || at_row < n_prompt() - 1)
        fail(ErrorCode::wrong_use, "step {} is out of range; choose {} to {}", at_row, n_prompt() - 1, row);
    const Lane& asked = lane_at(index);
    const int last = position + n_tokens - 1;
    if (n_tokens < 1 || position < 0 || last > at_row)
        fail(ErrorCode::wrong_use, "there is no token {} yet; the newest one is {}",
             position < 0 ? position : last, at_row);
    // Check the lane's whole history: what it stores was computed by earlier rows, which attended
    // differently.
    const HeadGrid grid = head_grid(asked.model->layout());
    const auto plain = [&](const LaneSpec& spec) {
        return attends_plainly(resolve(spec.policy, n_prompt(), start.n_generate, grid));
    };
    bool always = plain(asked.initial_spec);
    for (const LoggedCommand& met : asked.log)
        if (const auto* set = std::get_if<SetLane>(&met.command)) always = always && plain(set->spec);
    if (const bool now = plain(asked.spec); !now || !always)
        fail(ErrorCode::unsupported,
             "lane {} {}; what it would say with a token back is known for lanes that never did", index,
             now ? "hid tokens or moved keys to other positions in earlier steps"
                 : "hides tokens or moves keys to other positions");
    if (const int end = n_prompt() + static_cast<int>(asked.tokens.size()) - 1; end < at_row)
        fail(ErrorCode::wrong_use, "lane {} ended its text at step {}; rewind to {} to ask", index, end, end);
    Counterfactual result;
    result.lane_id = asked.id;
    result.position = position;
    result.n_tokens = n_tokens;
    result.row = at_row;
    // By the row after which; left_with without these tokens.
    std::map<int, std::vector<Eviction>> left, left_with;
    std::set<int> heads;
    for (const auto& gone : asked.left)
        for (const Eviction& e : *gone) {
            left[e.row].push_back(e);
            if (e.position < position || e.position > last)
                left_with[e.row].push_back(e);
            else if (e.row <= at_row)
                heads.insert(e.kv_head);
        }
    if (heads.empty())
        fail(ErrorCode::wrong_use, "{} of lane {} {} held everywhere{}", token_text(position, n_tokens),
             index, n_tokens == 1 ? "is" : "are", at_row < row ? fmt::format(" after step {}", at_row) : "");
    result.kv_heads.assign(heads.begin(), heads.end());

    // The newest row's distribution is known; that of an earlier row is replayed too.
    std::vector<float> as_it_is = asked.log_probs;
    if (at_row < row) {
        part_share = 0.5;
        as_it_is = replay_in_copy(asked, at_row, left);
        part_from = 0.5;
    }
    const std::vector<float> with = replay_in_copy(lane_at(index), at_row, left_with);
    for (const int id : top_k(with, start.n_top)) result.with.push_back({id, with[to_index(id)]});
    result.kl = kl_divergence(as_it_is, with);
    if (!result.with.empty())  // a distribution with NaN has no best token
        result.log_prob_as_is = as_it_is[to_index(result.with.front().id)];
    return result;
}

Counterfactual Session::with_token_restored(int index, int position,
                                            const std::function<bool(double)>& progress, int row,
                                            int n_tokens) {
    KH_ASSERT(impl_->row >= 0);
    return impl_->with_progress(
        progress, fmt::format("asking for {} of lane {}", token_text(position, n_tokens), index),
        [&] { return impl_->with_token_restored(index, position, n_tokens, row); });
}

}  // namespace keyhole
