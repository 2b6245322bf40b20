#include "engine/session/lane_replay.h"

#include "engine/base/error.h"
#include "engine/base/index.h"

namespace keyhole {

namespace {

/// Returns what a lane had to read by commands after a row.
std::vector<LoggedCommand> forced_after(const LaneState& lane, int row) {
    std::vector<LoggedCommand> commands;
    for (const LoggedCommand& logged : lane.log)
        if (logged.row > row && std::holds_alternative<ForceTokens>(logged.command))
            commands.push_back(logged);
    return commands;
}

}  // namespace

/// Replays a new lane: the prompt, then `tokens`, with `commands` at their rows. change: applied to the
/// commands' specs.
Lane LaneReplay::replayed(const LaneInfo& identity, const LaneSpec& initial_spec, std::span<const int> tokens,
                          std::span<const LoggedCommand> commands, const Change& change) const {
    Lane lane = runner_.new_lane(identity, initial_spec);
    lane.reading.forced = runner_.context().start.forced;
    const auto keep_evictions = [&] {
        lane.pending.insert(lane.pending.end(), lane.out.evictions.begin(), lane.out.evictions.end());
    };
    std::size_t n_applied = 0;
    const auto apply_until = [&](int at_row) {
        for (; n_applied < commands.size() && commands[n_applied].row <= at_row; ++n_applied) {
            Command command = commands[n_applied].command;
            if (auto* set = std::get_if<SetLane>(&command); set != nullptr && change) change(set->spec);
            runner_.apply(lane, command, commands[n_applied].row);
        }
    };
    const int n_prompt = runner_.context().n_prompt();
    const double n_rows = n_prompt + static_cast<double>(tokens.size());
    runner_.prefill(std::span(&lane, 1), sampling_, progress_.part(0, n_prompt / n_rows), false);
    keep_evictions();
    for (std::size_t i = 0; i < tokens.size() && lane.failure.empty(); ++i) {
        const int at_row = n_prompt + static_cast<int>(i);
        progress_.report_or_cancel(at_row / n_rows);
        apply_until(at_row - 1);
        lane.token = tokens[i];
        lane.token_log_prob = lane.log_probs[to_index(tokens[i])];
        Lane* const fed = &lane;
        runner_.feed(std::span(&fed, 1), at_row);
        lane.reading.note_read();
        lane.tokens.push_back(lane.token);
        keep_evictions();
        runner_.read_row(lane, sampling_, at_row);
    }
    apply_until(row_);
    return lane;
}

Lane LaneReplay::joined(const LaneInfo& identity, const LaneSpec& spec, const LaneState& reference,
                        std::span<const int> history) const {
    return replayed(identity, spec, history, forced_after(reference, -1), {});
}

Lane LaneReplay::restored(const LaneState& past, const LaneState& reference,
                          std::span<const int> history) const {
    const int past_row = runner_.context().n_prompt() - 1 + static_cast<int>(past.tokens.size());
    std::vector<int> tokens = past.tokens;
    std::vector<LoggedCommand> log = past.log;
    if (!past.ended) {
        tokens.insert(tokens.end(), history.begin() + std::ssize(past.tokens), history.end());
        std::erase_if(log, [&](const LoggedCommand& logged) { return logged.row > past_row; });
        const std::vector<LoggedCommand> missed = forced_after(reference, past_row);
        log.insert(log.end(), missed.begin(), missed.end());
    }
    Lane lane = replayed(*past.info, past.initial_spec, tokens, log, {});
    std::erase_if(lane.pending, [&](const Eviction& e) { return e.row <= past_row; });
    lane.pending.insert(lane.pending.begin(), past.pending.begin(), past.pending.end());
    lane.diverged = past.diverged;
    lane.ended = past.ended;
    lane.recorded = past.recorded;
    return lane;
}

Lane LaneReplay::with_shadow(const Lane& lane, bool shadow) const {
    const auto change = [&](LaneSpec& past) { past.policy.shadow = shadow; };
    LaneSpec initial_spec = lane.initial_spec;
    change(initial_spec);
    Lane fresh = replayed(*lane.info, initial_spec, lane.tokens, lane.log, change);
    for (int g = 0; g < lane.model->layout().n_kv_heads(); ++g)
        if (fresh.cache->stored_positions(g) != lane.cache->stored_positions(g))
            fail(ErrorCode::unsupported,
                 "lane '{}' keeps other tokens when it runs again from the prompt; start with shadow=on "
                 "instead",
                 lane.info->spec);
    Lane again = lane.with_cache(std::move(fresh.cache));
    again.out = std::move(fresh.out);
    again.spec = fresh.spec;
    again.info = fresh.info;
    again.initial_spec = initial_spec;  // a later replay has the shadow too
    again.log = std::move(fresh.log);
    return again;
}

Lane LaneReplay::from_prompt(const Lane& lane, const LaneSpec& spec, std::span<const int> history,
                             int new_id) const {
    const bool failed = !lane.failure.empty();
    const auto change = [&](LaneSpec& past) {
        const std::string once = format_lane_spec(past);
        past.sharing = spec.sharing;
        past.policy.shadow = past.policy.shadow || spec.policy.shadow;
        if (failed) past.policy.kv_dtype = spec.policy.kv_dtype;
        // Overrides may name heads that now share another's KV head.
        if (const std::string fault = runner_.context().fault_of(past); !fault.empty())
            fail(ErrorCode::wrong_use,
                 "the lane ran as '{}' before, and that past cannot run with the new KV heads: {}; 'add {}' "
                 "gives a lane without that past",
                 once, fault, format_lane_spec(spec));
    };
    LaneSpec initial_spec = lane.initial_spec;
    change(initial_spec);
    LaneInfo identity;
    identity.id = new_id;
    identity.forked_from = lane.recorded ? lane.id : lane.info->forked_from;
    identity.forked_at = lane.recorded ? row_ : lane.info->forked_at;
    identity.replayed = identity.forked_from >= 0;  // otherwise no record has shown the lane: it is new
    std::vector<int> tokens = lane.tokens;
    if (failed && tokens.size() < history.size())
        tokens.insert(tokens.end(), history.begin() + std::ssize(tokens), history.end());
    Lane again = replayed(identity, initial_spec, tokens, lane.log, change);
    again.diverged = lane.diverged;
    again.ended = lane.ended;
    again.reading = lane.reading;
    return again;
}

}  // namespace keyhole
