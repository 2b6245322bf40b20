#include "app/state/lane_editor.h"

#include "engine/base/error.h"

#include <algorithm>
#include <utility>

namespace keyhole {

namespace {

std::size_t at(int i) {
    return static_cast<std::size_t>(i);
}

/// The token that a command touches by hand, or null.
const TokenPlace* place_of(const Command& command) {
    if (const auto* evict = std::get_if<EvictToken>(&command)) return &evict->at;
    if (const auto* pin = std::get_if<PinToken>(&command)) return &pin->at;
    if (const auto* unpin = std::get_if<UnpinToken>(&command)) return &unpin->at;
    return nullptr;
}

/// A lane by its place in the log, which tells it from another one at its index.
struct LoggedLane {
    int id = 0;
    LaneSpec spec;
};

struct LoggedSettings {
    std::vector<LoggedLane> lanes;
    bool follow = false;
    Sampling sampling;
};

LoggedSettings settings_at(const RunSpec& run, int row) {
    LoggedSettings now{{}, run.follow, run.sampling};
    int id = 0;
    for (const LaneSpec& spec : run.lanes) now.lanes.push_back({id++, spec});
    const auto there = [&](int index) { return index < static_cast<int>(now.lanes.size()); };
    for (const LoggedCommand& logged : run.commands) {
        if (logged.row >= row) break;  // a rewind ends before what is stamped with its row
        if (const auto* set = std::get_if<SetLane>(&logged.command)) {
            if (there(set->index)) now.lanes[at(set->index)].spec = set->spec;
        } else if (const auto* add = std::get_if<AddLane>(&logged.command)) {
            now.lanes.push_back({id++, add->spec});
        } else if (const auto* remove = std::get_if<RemoveLane>(&logged.command)) {
            if (there(remove->index)) now.lanes.erase(now.lanes.begin() + remove->index);
        } else if (const auto* fork = std::get_if<ForkLane>(&logged.command)) {
            if (there(fork->index))
                now.lanes.push_back({id++, fork->spec.value_or(now.lanes[at(fork->index)].spec)});
        } else if (const auto* follow = std::get_if<SetFollow>(&logged.command)) {
            now.follow = follow->on;
        } else if (const auto* sampling = std::get_if<SetSampling>(&logged.command)) {
            now.sampling = sampling->sampling;
        }
    }
    return now;
}

}  // namespace

std::vector<LaneSpec> lanes_after_log(const RunSpec& run, int row) {
    std::vector<LaneSpec> lanes;
    for (LoggedLane& lane : settings_at(run, row).lanes) lanes.push_back(std::move(lane.spec));
    return lanes;
}

bool follows_after_log(const RunSpec& run, int row) {
    return settings_at(run, row).follow;
}

std::vector<Command> settings_since(const RunSpec& run, int row, std::span<const LaneSpec> lanes,
                                    bool follow) {
    LoggedSettings then = settings_at(run, row), now = settings_at(run, kWholeLog);
    now.lanes.resize(lanes.size(), {-1, {}});  // those that are under way are not in the log
    std::vector<Command> commands;
    for (int i = static_cast<int>(then.lanes.size()) - 1; i > 0; --i) {
        const int id = then.lanes[at(i)].id;
        if (std::any_of(now.lanes.begin(), now.lanes.end(), [&](const LoggedLane& l) { return l.id == id; }))
            continue;
        commands.push_back(RemoveLane{i});
        then.lanes.erase(then.lanes.begin() + i);
    }
    // Lanes join at the end: those that were there then come first, in their order.
    for (std::size_t i = 0; i < lanes.size(); ++i)
        if (i >= then.lanes.size())
            commands.push_back(AddLane{lanes[i]});
        else if (!(then.lanes[i].spec == lanes[i]))
            commands.push_back(SetLane{static_cast<int>(i), lanes[i]});
    if (then.follow != follow) commands.push_back(SetFollow{follow});
    if (!(then.sampling == now.sampling)) commands.push_back(SetSampling{now.sampling});
    return commands;
}

void LaneEditor::reset(std::vector<LaneSpec> lanes, bool follow) {
    lanes_ = std::move(lanes);
    follow_ = follow;
    done_.clear();
    undone_.clear();
}

void LaneEditor::adopt(const RunSpec& run, int pending_commands) {
    if (pending_commands > 0 || run.lanes.empty()) return;
    lanes_ = lanes_after_log(run);
    follow_ = follows_after_log(run);
}

void LaneEditor::set(int index, const LaneSpec& spec) {
    if (lanes_[at(index)] == spec) return;
    done_.push_back({index, lanes_[at(index)], spec});
    undone_.clear();
    lanes_[at(index)] = spec;
    send_(SetLane{index, spec});
}

void LaneEditor::add(LaneSpec spec) {
    lanes_.push_back(spec);
    send_(AddLane{std::move(spec)});
}

void LaneEditor::remove(int index) {
    if (index <= 0 || index >= n_lanes()) return;
    lanes_.erase(lanes_.begin() + index);
    done_.clear();  // indices moved
    undone_.clear();
    send_(RemoveLane{index});
}

void LaneEditor::set_follow(bool on) {
    if (follow_ == on) return;
    follow_ = on;
    send_(SetFollow{on});
}

void LaneEditor::run(const Command& command) {
    const auto check = [&](int index, int first) {
        if (index < first || index >= n_lanes())
            fail(ErrorCode::wrong_use, "'{}': lanes are {} to {}", format_command(command), first,
                 n_lanes() - 1);
    };
    if (const auto* change = std::get_if<SetLane>(&command)) {
        check(change->index, 0);
        set(change->index, change->spec);
    } else if (const auto* addition = std::get_if<AddLane>(&command)) {
        add(addition->spec);
    } else if (const auto* removal = std::get_if<RemoveLane>(&command)) {
        check(removal->index, 1);
        remove(removal->index);
    } else if (const auto* follow = std::get_if<SetFollow>(&command)) {
        set_follow(follow->on);
    } else if (const auto* fork = std::get_if<ForkLane>(&command)) {
        check(fork->index, 0);
        lanes_.push_back(fork->spec.value_or(lanes_[at(fork->index)]));
        send_(command);
    } else if (std::holds_alternative<Rewind>(command) || std::holds_alternative<GoToBranch>(command)) {
        done_.clear();  // the lanes become what they were there
        undone_.clear();
        send_(command);
    } else {
        if (const TokenPlace* place = place_of(command)) check(place->index, 0);
        send_(command);
    }
}

void LaneEditor::rewind(const RunSpec& log, int row, bool keeps) {
    const std::vector<Command> kept =
        keeps ? settings_since(log, row, lanes_, follow_) : std::vector<Command>();
    run(Rewind{row});
    for (const Command& command : kept) send_(command);
}

bool LaneEditor::undo() {
    if (done_.empty()) return false;
    const Change change = done_.back();
    done_.pop_back();
    undone_.push_back(change);
    lanes_[at(change.index)] = change.before;
    send_(SetLane{change.index, change.before});
    return true;
}

bool LaneEditor::redo() {
    if (undone_.empty()) return false;
    const Change change = undone_.back();
    undone_.pop_back();
    done_.push_back(change);
    lanes_[at(change.index)] = change.after;
    send_(SetLane{change.index, change.after});
    return true;
}

}  // namespace keyhole
