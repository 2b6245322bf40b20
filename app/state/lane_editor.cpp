#include "app/state/lane_editor.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/session/run_settings.h"

#include <algorithm>
#include <utility>

namespace keyhole {

namespace {

/// Returns the token that a command evicts or pins by hand, or null.
const TokenPlace* place_of(const Command& command) {
    if (const auto* evict = std::get_if<EvictToken>(&command)) return &evict->at;
    if (const auto* pin = std::get_if<PinToken>(&command)) return &pin->at;
    if (const auto* unpin = std::get_if<UnpinToken>(&command)) return &unpin->at;
    return nullptr;
}

}  // namespace

void LaneEditor::reset(std::vector<LaneSpec> lanes, bool follow) {
    lanes_ = std::move(lanes);
    follow_ = follow;
    done_.clear();
    undone_.clear();
}

void LaneEditor::adopt(const RunSpec& run) {
    if (run.lanes.empty()) return;
    const RunSettings settings = settings_at(run);
    lanes_ = settings.lane_specs();
    follow_ = settings.follow;
}

void LaneEditor::set(int index, const LaneSpec& spec) {
    if (lanes_[to_index(index)] == spec) return;
    done_.push_back({index, lanes_[to_index(index)], spec});
    undone_.clear();
    lanes_[to_index(index)] = spec;
    send_(SetLane{index, spec});
}

void LaneEditor::add(LaneSpec spec) {
    lanes_.push_back(spec);
    send_(AddLane{std::move(spec)});
}

void LaneEditor::remove(int index) {
    if (index <= 0 || index >= n_lanes()) return;
    lanes_.erase(lanes_.begin() + index);
    done_.clear();  // the indices have changed
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
        lanes_.push_back(fork->spec.value_or(lanes_[to_index(fork->index)]));
        send_(command);
    } else if (std::holds_alternative<Rewind>(command) || std::holds_alternative<GoToBranch>(command)) {
        done_.clear();  // the lanes take the settings of that step
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
    lanes_[to_index(change.index)] = change.before;
    send_(SetLane{change.index, change.before});
    return true;
}

bool LaneEditor::redo() {
    if (undone_.empty()) return false;
    const Change change = undone_.back();
    undone_.pop_back();
    done_.push_back(change);
    lanes_[to_index(change.index)] = change.after;
    send_(SetLane{change.index, change.after});
    return true;
}

}  // namespace keyhole
