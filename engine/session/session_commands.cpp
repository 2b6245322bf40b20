#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/json_text.h"
#include "engine/session/session_impl.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace keyhole {

namespace {

bool is_stored(const KvCache& cache, int kv_head, int position) {
    const std::vector<std::int32_t> stored = cache.stored_positions(kv_head);
    return std::binary_search(stored.begin(), stored.end(), position);
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

}  // namespace

Lane& Session::Impl::lane_at(int index) {
    if (index < 0 || to_index(index) >= lanes.size())
        fail(ErrorCode::wrong_use, "lane {} does not exist; there are lanes 0 to {}", index,
             lanes.size() - 1);
    return lanes[to_index(index)];
}

/// Returns why the model cannot run the spec; empty if it can. The text forms check this while parsing, but
/// the window fills structs directly.
std::string Session::Impl::fault_of(const LaneSpec& spec) const {
    std::vector<std::string> faults = validate(spec.policy);
    if (const std::string fault = check_sharing(spec.sharing, model->config()); !fault.empty())
        faults.push_back(fault);
    if (faults.empty())
        faults = check_overrides(spec.policy, head_grid(layout_of(model->config(), spec.sharing)));
    if (faults.empty() && spec.policy.positions != Positions::original &&
        run->config.positions == PositionKind::learned)
        faults.push_back(fmt::format(
            "positions other than original need keys that can be moved, and those of a {} model are learned",
            run->config.family));
    return faults.empty() ? std::string() : faults.front();
}

void Session::Impl::check(const LaneSpec& spec) const {
    if (const std::string fault = fault_of(spec); !fault.empty())
        fail(ErrorCode::wrong_use, "lane '{}': {}; change that value", shown_text(format_lane_spec(spec)),
             fault);
}

/// Performs a command, whether new or replayed.
void Session::Impl::perform(const Command& command) {
    if (const auto* set = std::get_if<SetLane>(&command)) {
        set_lane(*set);
    } else if (const auto* add = std::get_if<AddLane>(&command)) {
        add_lane(*add);
    } else if (const auto* remove = std::get_if<RemoveLane>(&command)) {
        lane_at(remove->index);
        if (remove->index == 0)
            fail(ErrorCode::wrong_use, "lane 0 is the reference of the others and stays; remove another one");
        lanes.erase(lanes.begin() + remove->index);
    } else if (const auto* on = std::get_if<SetFollow>(&command)) {
        follow = on->on;
    } else if (const auto* values = std::get_if<SetSampling>(&command)) {
        sampling = values->sampling;
        for (Lane& lane : lanes) read_logits(lane, row);
    } else if (const auto* fork = std::get_if<ForkLane>(&command)) {
        fork_lane(*fork);
    } else if (const auto* evict = std::get_if<EvictToken>(&command)) {
        touch_token(evict->at, command);
    } else if (const auto* pin = std::get_if<PinToken>(&command)) {
        touch_token(pin->at, command);
    } else if (const auto* unpin = std::get_if<UnpinToken>(&command)) {
        touch_token(unpin->at, command);
    } else if (const auto* tokens = std::get_if<ForceTokens>(&command)) {
        force(tokens->tokens, tokens->instead);
    } else if (const auto* say = std::get_if<SayText>(&command)) {
        force(model->tokenizer().encode(say->text, false), say->instead);
    }
}

void Session::Impl::set_lane(const SetLane& command) {
    check(command.spec);
    Lane& lane = lane_at(command.index);
    if (shared_model(model, command.spec.sharing) != lane.model) {
        Lane again = shared_anew(lane, command.spec);
        lane_at(command.index) = std::move(again);
        ++next_lane_id;
    } else if (lacks(lane, command.spec)) {
        Lane again = replayed_lane(lane, command.spec);
        lane_at(command.index) = std::move(again);
    }
    apply_to_lane(lane_at(command.index), command, row);
}

/// Returns whether the spec needs data that the lane's cache has not kept.
bool Session::Impl::lacks(const Lane& lane, const LaneSpec& spec) const {
    return spec.policy.shadow && !lane.policy().shadow;
}

/// Replays the lane from the prompt with its own tokens and commands, now keeping what `spec` needs from the
/// start.
Lane Session::Impl::replayed_lane(const Lane& from, const LaneSpec& spec) {
    const auto change = [&](LaneSpec& past) { past.policy.shadow = spec.policy.shadow; };
    Lane again;
    static_cast<LaneState&>(again) = from;
    std::vector<std::vector<std::int32_t>> stored;
    const int n_kv_heads = from.model->layout().n_kv_heads();
    for (int g = 0; g < n_kv_heads; ++g) stored.push_back(from.cache->stored_positions(g));
    LaneSpec initial_spec = again.initial_spec;
    change(initial_spec);
    lanes.push_back(new_lane(*again.info, initial_spec));  // `from` may have moved
    try {
        replay(again.tokens, again.log, change);
        for (int g = 0; g < n_kv_heads; ++g)
            if (lanes.back().cache->stored_positions(g) != stored[to_index(g)])
                fail(ErrorCode::unsupported,
                     "lane '{}' keeps other tokens when it runs again from the prompt; start with shadow=on "
                     "instead",
                     again.info->spec);
    } catch (...) {
        lanes.pop_back();
        throw;
    }
    again.cache = std::move(lanes.back().cache);
    again.out = std::move(lanes.back().out);
    again.spec = lanes.back().spec;
    again.info = lanes.back().info;
    lanes.pop_back();
    return again;
}

/// Replays the lane with its KV heads shared differently. This is another model, so it runs from the prompt,
/// with its own tokens forced and its commands at their rows. Readers see a new lane, a copy of the old one
/// up to this row, because its KV heads are different.
Lane Session::Impl::shared_anew(const Lane& from, const LaneSpec& spec) {
    const auto change = [&](LaneSpec& past) {
        const std::string once = format_lane_spec(past);
        past.sharing = spec.sharing;
        // Overrides may name heads that now share another's KV head.
        if (const std::string fault = fault_of(past); !fault.empty())
            fail(ErrorCode::wrong_use,
                 "the lane ran as '{}' before, and that past cannot run with the new KV heads: {}; 'add {}' "
                 "gives a lane without that past",
                 once, fault, format_lane_spec(spec));
    };
    const LaneState was = from;  // `from` may move
    LaneSpec initial_spec = was.initial_spec;
    change(initial_spec);
    LaneInfo identity;
    identity.id = next_lane_id;
    identity.forked_from = was.recorded ? was.id : was.info->forked_from;
    identity.forked_at = was.recorded ? row : was.info->forked_at;
    identity.replayed = identity.forked_from >= 0;  // otherwise no record has shown the lane: it is new
    lanes.push_back(new_lane(identity, initial_spec));
    try {
        replay(was.tokens, was.log, change);
    } catch (...) {
        lanes.pop_back();
        throw;
    }
    Lane again = std::move(lanes.back());
    lanes.pop_back();
    again.diverged = was.diverged;
    again.ended = was.ended;
    again.failure = was.failure;
    return again;
}

/// Adds a lane and replays it with the prompt and the reference lane's tokens up to the current row.
void Session::Impl::add_lane(const AddLane& command) {
    check(command.spec);
    if (const Lane& reference = lanes.front(); reference.ended)
        fail(ErrorCode::wrong_use,
             "a lane that joins reads lane 0's past tokens, and lane 0 ended its text at step {}; rewind to "
             "before that",
             n_prompt() + static_cast<int>(reference.tokens.size()) - 1);
    LaneInfo identity;
    identity.id = next_lane_id;
    lanes.push_back(new_lane(identity, command.spec));
    try {
        replay(history, {}, {});
    } catch (...) {
        lanes.pop_back();
        throw;
    }
    ++next_lane_id;
}

void Session::Impl::fork_lane(const ForkLane& command) {
    if (command.spec) check(*command.spec);
    const Lane& parent = lane_at(command.index);
    Lane lane = parent.copy();
    LaneInfo identity;
    identity.id = lane.id = next_lane_id;
    // Readers copy what the records contain of the parent. If they contain nothing of it, `pending` holds
    // all.
    identity.forked_from = parent.recorded ? parent.id : parent.info->forked_from;
    identity.forked_at = parent.recorded ? row : parent.info->forked_at;
    identity.replayed = !parent.recorded && parent.info->replayed;
    lane.info = lane_info(identity, lane.spec, *lane.model);
    lane.recorded = false;
    if (command.spec) {
        if (shared_model(model, command.spec->sharing) != lane.model)
            lane = shared_anew(parent, *command.spec);
        else if (lacks(lane, *command.spec))
            lane = replayed_lane(lane, *command.spec);
        apply_to_lane(lane, SetLane{command.index, *command.spec}, row);
    }
    lanes.push_back(std::move(lane));
    ++next_lane_id;
}

/// Sets the tokens that the next rows consume, whatever the lanes choose. A text that ended with the current
/// row continues.
void Session::Impl::force(const std::vector<int>& tokens, bool instead) {
    for (const int token : tokens)
        if (token < 0 || token >= model->config().n_vocab)
            fail(ErrorCode::wrong_use, "there is no token {}; the model has 0 to {}", token,
                 model->config().n_vocab - 1);
    if (instead) forced.clear();
    forced.insert(forced.end(), tokens.begin(), tokens.end());
    for (Lane& lane : lanes)
        if (lane.ended && n_prompt() + static_cast<int>(lane.tokens.size()) - 1 == row) lane.ended = false;
}

/// Evicts, pins or unpins a token by command.
void Session::Impl::touch_token(const TokenPlace& at, const Command& command) {
    Lane& lane = lane_at(at.index);
    const KvLayout& layout = lane.model->layout();
    if (at.layer >= layout.n_layers() || at.head >= layout.n_heads())
        fail(ErrorCode::wrong_use, "there is no L{}{}; the model has layers 0 to {} of query heads 0 to {}",
             at.layer, at.head < 0 ? "" : fmt::format(".H{}", at.head), layout.n_layers() - 1,
             layout.n_heads() - 1);
    if (at.position < 0 || at.position > row)
        fail(ErrorCode::wrong_use, "there is no token {} yet; the newest one is {}", at.position, row);
    const std::vector<int> heads = kv_heads_at(layout, at);
    if (std::holds_alternative<UnpinToken>(command)) {
        const bool pinned =
            lane.pins != nullptr && std::any_of(lane.pins->begin(), lane.pins->end(), [&](const Pin& pin) {
                return pin.position == at.position &&
                       std::binary_search(heads.begin(), heads.end(), pin.kv_head);
            });
        if (!pinned)
            fail(ErrorCode::wrong_use, "token {} of lane {} is not pinned {}; nothing to unpin", at.position,
                 at.index, place_text(at));
    } else if (std::none_of(heads.begin(), heads.end(),
                            [&](int g) { return is_stored(*lane.cache, g, at.position); })) {
        const std::string kept = ranges_text(lane.cache->stored_positions(heads.front()));
        fail(ErrorCode::wrong_use, "token {} of lane {} is not stored {}: {}; stored {}: {}", at.position,
             at.index, place_text(at), left_text(lane, heads, at.position),
             heads.size() == 1 ? "there" : "in the first KV head there", kept);
    }
    apply_to_lane(lane, command, row);
}

/// Applies the branch's commands at the current row. Returns false if one was cancelled; it waits, with those
/// after it.
bool Session::Impl::apply_scheduled(const std::function<bool(double)>& report) {
    return with_progress(report, "a command of the branch", [&] { return apply_waiting(); });
}

/// The same, each command with an equal share of the current part of the progress.
bool Session::Impl::apply_waiting() {
    const auto n = std::count_if(scheduled.begin(), scheduled.end(),
                                 [&](const LoggedCommand& logged) { return logged.row == row; });
    if (n > 0) part_share /= static_cast<double>(n);
    for (; command_waits(); scheduled.pop_front()) {
        try {
            perform(scheduled.front().command);
        } catch (const Error& error) {
            if (error.code() == ErrorCode::cancelled) return false;
            throw;
        }
        commands_since.push_back(format_command(scheduled.front().command));
        part_from += part_share;
    }
    return true;
}

/// Restores the state right after a row, replayed from the nearest checkpoint or the prompt. commands: those
/// of the rows before it.
void Session::Impl::restore(int to_row, const std::vector<LoggedCommand>& commands) {
    SessionState before = std::move(static_cast<SessionState&>(*this));
    quiet = true;
    const double whole_from = part_from, whole_share = part_share;
    checkpoints.drop_after(to_row);
    try {
        const SessionState* kept = checkpoints.latest(to_row);
        const int first = kept != nullptr ? kept->row : -1;
        const double n_rows = std::max(to_row - first, 1);
        if (kept != nullptr) {
            static_cast<SessionState&>(*this) = kept->copy();
        } else {
            static_cast<SessionState&>(*this) = first_state();
            prefill_again(0, n_prompt() / n_rows);
            row = n_prompt() - 1;
            discard_outputs();
        }
        std::size_t next = 0;
        while (next < commands.size() && commands[next].row < row) ++next;
        while (row < to_row) {
            part_from = whole_from + whole_share * (row - first) / n_rows;
            part_share = whole_share / n_rows;
            report_or_cancel(0);
            for (; next < commands.size() && commands[next].row == row; ++next)
                perform(commands[next].command);
            feed_row();
            discard_outputs();
            checkpoints.offer(*this);
        }
    } catch (...) {
        static_cast<SessionState&>(*this) = std::move(before);
        quiet = false;
        throw;
    }
    quiet = false;
}

namespace {

std::vector<LoggedCommand> before_row(std::vector<LoggedCommand> commands, int row) {
    std::erase_if(commands, [&](const LoggedCommand& logged) { return logged.row >= row; });
    return commands;
}

}  // namespace

void Session::Impl::rewind(const Rewind& command) {
    if (command.row < n_prompt() - 1 || command.row > row)
        fail(ErrorCode::wrong_use,
             "cannot rewind to step {}; there are steps {} (the end of the prompt) to {}", command.row,
             n_prompt() - 1, row);
    const bool on_the_way = row < caught_up_at || !scheduled.empty();
    if (command.row == row && !on_the_way && (log.empty() || log.back().row < row))
        return;  // nothing came after it
    restore(command.row, before_row(log, command.row));
    scheduled.clear();
    caught_up_at = -1;
    tree.rewind(command.row);
    branches_changed();
}

void Session::Impl::go_to_branch(const GoToBranch& command) {
    const BranchTree::Way way = tree.way_to(command.id);
    const auto n_first =
        std::count_if(way.commands.begin(), way.commands.end(),
                      [&](const LoggedCommand& logged) { return logged.row == way.from_row; });
    part_share = 1.0 / static_cast<double>(1 + n_first);
    restore(way.from_row, before_row(log, way.from_row));
    tree.go_to(command.id);
    scheduled.assign(way.commands.begin(), way.commands.end());
    caught_up_at = way.last_row;
    branches_changed();
    // The switch cannot be undone from here: if cancelled, the commands wait.
    part_from = 1.0 / static_cast<double>(1 + n_first);
    part_share = 1 - part_from;
    apply_waiting();
}

/// Updates what depends on the branches. The session's state is that of the last row that the old and the new
/// branch share.
void Session::Impl::branches_changed() {
    log = tree.line();
    const std::vector<Branch> list = tree.others();
    others = list.empty() ? nullptr : std::make_shared<const std::vector<Branch>>(list);
    if (sink != nullptr) sink->rewind(row);
}

}  // namespace keyhole
