#include "engine/session/command_applier.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/session/forced_text.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace keyhole {

namespace {

bool is_stored(const KvCache& cache, int kv_head, int position) {
    const std::vector<std::int32_t> stored = cache.stored_positions(kv_head);
    return std::binary_search(stored.begin(), stored.end(), position);
}

bool is_pinned(const Lane& lane, const std::vector<int>& heads, int position) {
    return lane.pins != nullptr && std::any_of(lane.pins->begin(), lane.pins->end(), [&](const Pin& pin) {
               return pin.position == position && std::binary_search(heads.begin(), heads.end(), pin.kv_head);
           });
}

std::string place_text(const TokenPlace& at) {
    if (at.layer < 0) return "anywhere";
    return at.head < 0 ? fmt::format("in L{}", at.layer) : fmt::format("in L{}.H{}", at.layer, at.head);
}

/// Returns positions as "0-3, 17, 20-31", only the newest ones if there are many.
std::string ranges_text(const std::vector<std::int32_t>& positions) {
    std::vector<std::string> ranges;
    for (std::size_t i = 0; i < positions.size();) {
        std::size_t end = i + 1;
        while (end < positions.size() && positions[end] == positions[end - 1] + 1) ++end;
        ranges.push_back(end - i == 1 ? fmt::format("{}", positions[i])
                                      : fmt::format("{}-{}", positions[i], positions[end - 1]));
        i = end;
    }
    constexpr std::size_t kShown = 8;
    const bool many = ranges.size() > kShown;
    if (many) ranges.erase(ranges.begin(), ranges.end() - kShown);
    return ranges.empty() ? "nothing" : (many ? "..., " : "") + fmt::format("{}", fmt::join(ranges, ", "));
}

/// Returns text that names the rows after which KV heads evicted a token.
std::string left_text(const Lane& lane, const std::vector<int>& heads, int position) {
    int first = -1, last = -1;
    for (const auto& gone : lane.left)
        for (const Eviction& e : *gone)
            if (e.position == position && std::binary_search(heads.begin(), heads.end(), e.kv_head)) {
                first = first < 0 ? e.row : std::min(first, e.row);
                last = std::max(last, e.row);
            }
    return first == last ? fmt::format("it left after step {}", last)
                         : fmt::format("it left after steps {} to {}", first, last);
}

/// Returns whether the spec needs data that the lane's cache has not kept.
bool lacks(const Lane& lane, const LaneSpec& spec) {
    return spec.policy.shadow && !lane.policy().shadow;
}

}  // namespace

void CommandApplier::apply(const Command& command) {
    if (const auto* set = std::get_if<SetLane>(&command)) {
        set_lane(*set);
    } else if (const auto* add = std::get_if<AddLane>(&command)) {
        add_lane(*add);
    } else if (const auto* remove = std::get_if<RemoveLane>(&command)) {
        remove_lane(*remove);
    } else if (const auto* restore = std::get_if<RestoreLane>(&command)) {
        restore_lane(*restore);
    } else if (const auto* on = std::get_if<SetFollow>(&command)) {
        for (const Lane& lane : state_.lanes)
            if (needs_future(lane.spec.policy)) check_future(lane.spec, on->on, state_.lanes.front().spec);
        state_.follow = on->on;
    } else if (const auto* values = std::get_if<SetSampling>(&command)) {
        set_sampling(values->sampling);
    } else if (const auto* fork = std::get_if<ForkLane>(&command)) {
        fork_lane(*fork);
    } else if (const auto* evict = std::get_if<EvictToken>(&command)) {
        touch_token(evict->at, command);
    } else if (const auto* pin = std::get_if<PinToken>(&command)) {
        touch_token(pin->at, command);
    } else if (const auto* unpin = std::get_if<UnpinToken>(&command)) {
        touch_token(unpin->at, command);
    } else if (const auto* tokens = std::get_if<ForceTokens>(&command)) {
        force_tokens(runner_.context(), state_, tokens->tokens, tokens->instead);
    } else if (const auto* say = std::get_if<SayText>(&command)) {
        say_text(runner_.context(), state_, *say);
    }
}

void CommandApplier::set_lane(const SetLane& command) {
    runner_.context().check(command.spec);
    Lane& lane = state_.lane_at(command.index);
    for (const Lane& other : state_.lanes) {
        const LaneSpec& spec = &other == &lane ? command.spec : other.spec;
        if (needs_future(spec.policy))
            check_future(spec, state_.follow, command.index == 0 ? command.spec : state_.lanes.front().spec);
    }
    check_can_go_on(lane, command.index);
    const bool is_new = needs_prompt(lane, command.spec);
    if (!is_new && !lacks(lane, command.spec)) return runner_.apply(lane, command, state_.row, progress_);
    // In a lane of its own until nothing can throw any more.
    Lane again = is_new ? replay_.from_prompt(lane, command.spec, state_.history, state_.id_for_new_lane())
                        : replay_.with_shadow(lane, command.spec.policy.shadow);
    runner_.apply(again, command, state_.row, progress_);
    lane = std::move(again);
    state_.next_lane_id += is_new ? 1 : 0;
}

/// Adds a lane that has read the prompt and the reference lane's tokens.
void CommandApplier::add_lane(const AddLane& command) {
    const RunContext& context = runner_.context();
    context.check(command.spec);
    const Lane& reference = state_.lanes.front();
    if (needs_future(command.spec.policy)) check_future(command.spec, state_.follow, reference.spec);
    check_text_goes_on();
    LaneInfo identity;
    identity.id = state_.id_for_new_lane();
    state_.lanes.push_back(replay_.joined(identity, command.spec, reference, state_.history));
    state_.lanes.back().reading = state_.lanes.front().reading;
    ++state_.next_lane_id;
}

/// Throws if lane 0 has no tokens of the newest rows, which a lane that joins reads.
void CommandApplier::check_text_goes_on() const {
    const Lane& reference = state_.lanes.front();
    if (!reference.failure.empty())
        fail(ErrorCode::wrong_use, "a lane that joins reads lane 0's past tokens, and lane 0 failed: {}",
             reference.failure);
    if (reference.ended)
        fail(ErrorCode::wrong_use,
             "a lane that joins reads lane 0's past tokens, and lane 0 ended its text at step {}; rewind to "
             "before that",
             runner_.context().n_prompt() + static_cast<int>(reference.tokens.size()) - 1);
}

void CommandApplier::remove_lane(const RemoveLane& command) {
    const Lane& lane = state_.lane_at(command.index);
    if (command.index == 0)
        fail(ErrorCode::wrong_use, "lane 0 is the reference of the others and stays; remove another one");
    RemovedLane removed{command.index, static_cast<const LaneState&>(lane)};
    // A replay makes the rest again.
    removed.past.out = {};
    removed.past.log_probs.clear();
    removed.past.left.clear();
    state_.removed.push_back(std::move(removed));
    state_.lanes.erase(state_.lanes.begin() + command.index);
}

/// Brings a removed lane back, so that its records go on.
void CommandApplier::restore_lane(const RestoreLane& command) {
    const auto found =
        std::find_if(state_.removed.rbegin(), state_.removed.rend(), [&](const RemovedLane& lane) {
            return lane.index == command.index && lane.past.spec == command.spec;
        });
    if (found == state_.removed.rend() || command.index > std::ssize(state_.lanes))
        fail(ErrorCode::wrong_use, "no lane {} with the settings {} was removed; 'add {}' gives a new lane",
             command.index, format_lane_spec(command.spec), format_lane_spec(command.spec));
    if (!found->past.failure.empty())
        fail(ErrorCode::wrong_use, "lane {} had failed before it was removed: {}", command.index,
             found->past.failure);
    const bool missed_rows = found->past.tokens.size() < state_.history.size();
    if (missed_rows && !found->past.ended) check_text_goes_on();
    Lane lane = replay_.restored(found->past, state_.lanes.front(), state_.history);
    lane.reading = missed_rows && !found->past.ended ? state_.lanes.front().reading : found->past.reading;
    state_.removed.erase(std::prev(found.base()));
    state_.lanes.insert(state_.lanes.begin() + command.index, std::move(lane));
}

void CommandApplier::fork_lane(const ForkLane& command) {
    if (command.spec) runner_.context().check(*command.spec);
    if (command.spec && needs_future(command.spec->policy))
        check_future(*command.spec, state_.follow, state_.lanes.front().spec);
    const Lane& parent = state_.lane_at(command.index);
    if (!parent.failure.empty() && !command.spec)
        fail(ErrorCode::wrong_use, "lane {} failed, so a copy cannot go on: {}; fork it with other settings",
             command.index, parent.failure);
    check_can_go_on(parent, command.index);
    Lane lane = parent.copy();
    LaneInfo identity;
    identity.id = lane.id = state_.id_for_new_lane();
    // Readers copy what the records contain of the parent. If they contain nothing of it, `pending` holds
    // all.
    identity.forked_from = parent.recorded ? parent.id : parent.info->forked_from;
    identity.forked_at = parent.recorded ? state_.row : parent.info->forked_at;
    identity.replayed = !parent.recorded && parent.info->replayed;
    lane.info = runner_.lane_info(identity, lane.spec, *lane.model);
    lane.recorded = false;
    if (command.spec) {
        if (needs_prompt(parent, *command.spec))
            lane = replay_.from_prompt(parent, *command.spec, state_.history, lane.id);
        else if (lacks(lane, *command.spec))
            lane = replay_.with_shadow(lane, command.spec->policy.shadow);
        runner_.apply(lane, SetLane{command.index, *command.spec}, state_.row, progress_);
    }
    state_.lanes.push_back(std::move(lane));
    ++state_.next_lane_id;
}

/// Throws if a lane that ranks by `future` would not know its text ahead.
void CommandApplier::check_future(const LaneSpec& spec, bool follow, const LaneSpec& reference) const {
    if (const std::string fault = future_fault(runner_.context(), follow, reference); !fault.empty())
        fail(ErrorCode::wrong_use, "lane '{}': {}", format_lane_spec(spec), fault);
}

void CommandApplier::set_sampling(const Sampling& sampling) {
    state_.sampling = sampling;
    for (Lane& lane : state_.lanes)
        if (lane.failure.empty()) runner_.read_logits(lane, sampling, state_.row);
}

/// Throws if the lane failed before the current row and lane 0's tokens cannot take it there.
void CommandApplier::check_can_go_on(const Lane& lane, int index) const {
    if (lane.failure.empty() || lane.tokens.size() >= state_.history.size() || state_.lanes.front().active())
        return;
    const int row = runner_.context().n_prompt() + static_cast<int>(lane.tokens.size()) - 1;
    fail(ErrorCode::wrong_use, "lane {} failed at step {}, which is past; rewind to {} to change the lane",
         index, row, row);
}

/// Returns whether the lane takes these settings only by a run from the prompt.
bool CommandApplier::needs_prompt(const Lane& lane, const LaneSpec& spec) const {
    return !lane.failure.empty() || shared_model(runner_.context().model, spec.sharing) != lane.model;
}

/// Evicts, pins or unpins a token by command.
void CommandApplier::touch_token(const TokenPlace& at, const Command& command) {
    Lane& lane = state_.lane_at(at.index);
    const KvLayout& layout = lane.model->layout();
    if (at.layer >= layout.n_layers() || at.head >= layout.n_heads())
        fail(ErrorCode::wrong_use, "there is no L{}{}; the model has layers 0 to {} of query heads 0 to {}",
             at.layer, at.head < 0 ? "" : fmt::format(".H{}", at.head), layout.n_layers() - 1,
             layout.n_heads() - 1);
    if (at.position < 0 || at.position > state_.row)
        fail(ErrorCode::wrong_use, "there is no token {} yet; the newest one is {}", at.position, state_.row);
    const std::vector<int> heads = kv_heads_at(layout, at);
    if (std::holds_alternative<UnpinToken>(command)) {
        if (!is_pinned(lane, heads, at.position))
            fail(ErrorCode::wrong_use, "token {} of lane {} is not pinned {}; nothing to unpin", at.position,
                 at.index, place_text(at));
    } else if (std::none_of(heads.begin(), heads.end(),
                            [&](int g) { return is_stored(*lane.cache, g, at.position); })) {
        const std::string kept = ranges_text(lane.cache->stored_positions(heads.front()));
        fail(ErrorCode::wrong_use, "token {} of lane {} is not stored {}: {}; stored {}: {}", at.position,
             at.index, place_text(at), left_text(lane, heads, at.position),
             heads.size() == 1 ? "there" : "in the first KV head there", kept);
    }
    runner_.apply(lane, command, state_.row);
}

}  // namespace keyhole
