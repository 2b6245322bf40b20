#include "app/state/lane_editor.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/policy/lane_names.h"
#include "engine/policy/spec_text.h"
#include "engine/policy/system_part.h"
#include "engine/run/run_settings.h"

#include <fmt/ranges.h>

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

/// The options of a spec, `key=value` each.
std::vector<std::string> options_of(const LaneSpec& spec) {
    const std::string text = format_lane_spec(spec);
    const std::size_t colon = text.find(':');
    std::vector<std::string> options;
    if (colon == std::string::npos) return options;
    const spec_text::Reader reader(text);
    bool goes_on = false;  // the places of an override may have commas: budget@L5.G2,L7.G0=all
    for (const spec_text::Item& item : reader.split_commas({std::string_view(text).substr(colon + 1), 0})) {
        if (goes_on)
            options.back().append(",").append(item.text);
        else
            options.emplace_back(item.text);
        goes_on = item.text.find('=') == std::string_view::npos;
    }
    return options;
}

/// Says how a spec changed, such as "budget=64 → budget=48" or "h2o → tova".
std::string spec_change_words(const LaneSpec& before, const LaneSpec& after) {
    if (before.name != after.name && same_settings(before, after))
        return fmt::format("name {} → {}", before.name.empty() ? "none" : before.name,
                           after.name.empty() ? "none" : after.name);
    if (before.policy.preset != after.policy.preset)
        return fmt::format("{} → {}", preset_name(before.policy.preset), preset_name(after.policy.preset));
    const auto only_in = [](const std::vector<std::string>& these, const std::vector<std::string>& others) {
        std::vector<std::string> found;
        for (const std::string& option : these)
            if (std::find(others.begin(), others.end(), option) == others.end()) found.push_back(option);
        return found.empty() ? std::string("default") : fmt::format("{}", fmt::join(found, ","));
    };
    const std::vector<std::string> old_options = options_of(before), new_options = options_of(after);
    return fmt::format("{} → {}", only_in(old_options, new_options), only_in(new_options, old_options));
}

}  // namespace

const std::string& LaneEditor::name(int index) const {
    if (named_ != lanes_) {
        names_ = lane_names(lanes_);
        named_ = lanes_;
    }
    return names_.at(to_index(index));
}

std::string LaneEditor::title(int index) const {
    return fmt::format("{} {}", index, name(index));
}

void LaneEditor::reset(std::vector<LaneSpec> lanes, bool follow) {
    ++version_;
    lanes_ = std::move(lanes);
    keys_.assign(lanes_.size(), {});
    follow_ = follow;
    done_.clear();
    undone_.clear();
}

void LaneEditor::start() {
    ++version_;
    for (std::size_t i = 0; i < keys_.size(); ++i) keys_[i].place = static_cast<int>(i);
    for (std::vector<Change>* changes : {&done_, &undone_})
        for (Change& change : *changes) change.key = {};  // the new run has no records of removed lanes
}

void LaneEditor::started(std::uint64_t run, std::span<const int> ids) {
    ++version_;
    for (LaneKey& key : keys_)
        key = key.place >= 0 && key.place < std::ssize(ids) ? LaneKey{run, ids[to_index(key.place)]}
                                                            : LaneKey{};
}

/// Takes a change back in the list of lanes. Sends nothing.
void LaneEditor::take_back(const Change& change) {
    ++version_;
    const bool removed = change.kind == Kind::removed;
    if (change.index > n_lanes() || (change.index == n_lanes() && !removed)) return;
    const auto at = lanes_.begin() + change.index;
    const auto key = keys_.begin() + change.index;
    if (removed) {
        lanes_.insert(at, change.before);
        keys_.insert(key, change.key);
    } else if (change.kind == Kind::settings) {
        *at = change.before;
    } else {
        lanes_.erase(at);
        keys_.erase(key);
    }
}

bool LaneEditor::adopt(const RunSpec& run, std::uint64_t run_id, std::span<const int> ids) {
    if (run.lanes.empty()) return false;
    const RunSettings settings = settings_at(run);
    bool changed = std::exchange(follow_, settings.follow) != settings.follow;
    std::vector<LaneSpec> lanes = settings.lane_specs();
    // `protect=system` stays as it was asked for, so that the next run can put its own positions in place.
    const auto differ = [&] { return !std::ranges::equal(lanes_, lanes, are_alike); };
    changed = changed || differ();
    // Take back the changes that the engine refused, so that they cannot be undone. If the lanes still
    // differ, nothing can be undone.
    while (differ() && !done_.empty()) {
        take_back(done_.back());
        done_.pop_back();
        undone_.clear();
    }
    if (differ()) {
        undone_.clear();
        lanes_ = std::move(lanes);
        ++version_;
    }
    std::vector<LaneKey> keys = keys_;
    keys.resize(lanes_.size());
    // A rewind gives the run another id, and perhaps its lanes.
    const auto parent_now = [&](const LaneKey& key) {
        for (std::size_t i = 0; i < keys_.size() && i < ids.size(); ++i)
            if (key.copy_of >= 0 && keys_[i].run == key.run && keys_[i].id == key.copy_of) return ids[i];
        return key.run == run_id ? key.copy_of : -1;
    };
    if (run_id != 0 && ids.size() == lanes_.size())
        for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = {run_id, ids[i], parent_now(keys[i])};
    if (keys != keys_) ++version_;
    keys_ = std::move(keys);
    return changed;
}

void LaneEditor::set(int index, const LaneSpec& spec) {
    if (lanes_[to_index(index)] == spec) return;
    note({Kind::settings, index, lanes_[to_index(index)], spec});
    put_settings(index, spec);
}

void LaneEditor::put_settings(int index, const LaneSpec& spec) {
    ++version_;
    LaneKey& key = keys_[to_index(index)];
    // A lane that shares KV heads in another way becomes another lane, which runs from the prompt.
    if (spec.sharing != lanes_[to_index(index)].sharing && key.id >= 0)
        key.copy_of = std::exchange(key.id, -1);
    lanes_[to_index(index)] = spec;
    send_(SetLane{index, spec});
}

void LaneEditor::append(const LaneSpec& spec, const LaneKey& key) {
    ++version_;
    lanes_.push_back(spec);
    keys_.push_back(key);
}

void LaneEditor::add(LaneSpec spec) {
    note({Kind::added, n_lanes(), spec, spec});
    append(spec, {});
    send_(AddLane{std::move(spec)});
}

void LaneEditor::remove(int index) {
    if (index <= 0 || index >= n_lanes()) return;
    note({Kind::removed, index, lanes_[to_index(index)], lanes_[to_index(index)], key(index)});
    take_out(index);
}

void LaneEditor::take_out(int index) {
    ++version_;
    lanes_.erase(lanes_.begin() + index);
    keys_.erase(keys_.begin() + index);
    send_(RemoveLane{index});
}

void LaneEditor::put_back(int index, const LaneSpec& spec, const LaneKey& key) {
    ++version_;
    lanes_.insert(lanes_.begin() + index, spec);
    keys_.insert(keys_.begin() + index, key);
    send_(RestoreLane{index, spec});
}

void LaneEditor::note(Change change) {
    done_.push_back(std::move(change));
    undone_.clear();
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
    } else if (const auto* back = std::get_if<RestoreLane>(&command)) {
        if (back->index < 1 || back->index > n_lanes())
            fail(ErrorCode::wrong_use, "'{}': a lane comes back as lane 1 to {}", format_command(command),
                 n_lanes());
        note({Kind::added, back->index, back->spec, back->spec});
        put_back(back->index, back->spec);
    } else if (const auto* follow = std::get_if<SetFollow>(&command)) {
        set_follow(follow->on);
    } else if (const auto* fork = std::get_if<ForkLane>(&command)) {
        check(fork->index, 0);
        const LaneSpec spec = fork->spec.value_or(lanes_[to_index(fork->index)]);
        note({Kind::forked, n_lanes(), spec, spec});
        const LaneKey& parent = key(fork->index);
        append(spec, {parent.run, -1, parent.id >= 0 ? parent.id : parent.copy_of});
        send_(command);
    } else if (turns_back(command)) {
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
    Change change = done_.back();
    done_.pop_back();
    if (change.kind == Kind::settings) {
        put_settings(change.index, change.before);
    } else {
        if (change.kind != Kind::removed && change.index < n_lanes()) change.key = key(change.index);
        take_back(change);
        if (change.kind == Kind::removed)
            send_(RestoreLane{change.index, change.before});
        else
            send_(RemoveLane{change.index});
    }
    undone_.push_back(std::move(change));
    return true;
}

bool LaneEditor::redo() {
    if (undone_.empty()) return false;
    const Change change = undone_.back();
    undone_.pop_back();
    done_.push_back(change);
    switch (change.kind) {
        case Kind::settings:
            put_settings(change.index, change.after);
            break;
        case Kind::added:
        case Kind::forked:
            put_back(change.index, change.after, change.key);
            break;
        case Kind::removed:
            done_.back().key = key(change.index);
            take_out(change.index);
            break;
    }
    return true;
}

std::string LaneEditor::words_of(const Change& change) {
    switch (change.kind) {
        case Kind::settings:
            return fmt::format("lane {}, {}", change.index, spec_change_words(change.before, change.after));
        case Kind::added:
            return fmt::format("adding lane {}, {}", change.index, preset_name(change.after.policy.preset));
        case Kind::forked:
            return fmt::format("the fork, lane {}", change.index);
        case Kind::removed:
            return fmt::format("removing {}", format_lane_spec(change.before));
    }
    return {};
}

std::string LaneEditor::next_undo() const {
    return done_.empty() ? std::string() : words_of(done_.back());
}

std::string LaneEditor::next_redo() const {
    return undone_.empty() ? std::string() : words_of(undone_.back());
}

}  // namespace keyhole
