#include "engine/run/run_settings.h"

#include "engine/base/index.h"
#include "engine/policy/system_part.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace keyhole {

std::vector<LaneSpec> RunSettings::lane_specs() const {
    std::vector<LaneSpec> specs;
    for (const LoggedLane& lane : lanes) specs.push_back(lane.spec);
    return specs;
}

RunSettings settings_at(const RunSpec& run, int row) {
    RunSettings now{{}, run.follow, run.sampling};
    int id = 0;
    std::vector<std::pair<int, LoggedLane>> removed;  // with the index that each had
    for (const LaneSpec& spec : run.lanes) now.lanes.push_back({id++, spec});
    const auto there = [&](int index) { return index < static_cast<int>(now.lanes.size()); };
    for (const LoggedCommand& logged : run.commands) {
        if (logged.row >= row) break;
        if (const auto* set = std::get_if<SetLane>(&logged.command)) {
            if (there(set->index)) now.lanes[to_index(set->index)].spec = set->spec;
        } else if (const auto* add = std::get_if<AddLane>(&logged.command)) {
            now.lanes.push_back({id++, add->spec});
        } else if (const auto* remove = std::get_if<RemoveLane>(&logged.command)) {
            if (!there(remove->index)) continue;
            removed.emplace_back(remove->index, now.lanes[to_index(remove->index)]);
            now.lanes.erase(now.lanes.begin() + remove->index);
        } else if (const auto* restore = std::get_if<RestoreLane>(&logged.command)) {
            const auto found = std::find_if(removed.rbegin(), removed.rend(), [&](const auto& lane) {
                return lane.first == restore->index && lane.second.spec == restore->spec;
            });
            if (found == removed.rend() || restore->index > std::ssize(now.lanes)) continue;
            now.lanes.insert(now.lanes.begin() + restore->index, found->second);
            removed.erase(std::prev(found.base()));
        } else if (const auto* fork = std::get_if<ForkLane>(&logged.command)) {
            if (there(fork->index))
                now.lanes.push_back({id++, fork->spec.value_or(now.lanes[to_index(fork->index)].spec)});
        } else if (const auto* follow = std::get_if<SetFollow>(&logged.command)) {
            now.follow = follow->on;
        } else if (const auto* sampling = std::get_if<SetSampling>(&logged.command)) {
            now.sampling = sampling->sampling;
        }
    }
    return now;
}

std::vector<Command> settings_since(const RunSpec& run, int row, std::span<const LaneSpec> lanes,
                                    bool follow) {
    RunSettings then = settings_at(run, row), now = settings_at(run, kWholeLog);
    now.lanes.resize(lanes.size(), {-1, {}});  // pending commands are not in the log
    std::vector<Command> commands;
    const auto drop = [&](int i) {
        commands.push_back(RemoveLane{i});
        then.lanes.erase(then.lanes.begin() + i);
    };
    for (int i = static_cast<int>(then.lanes.size()) - 1; i > 0; --i) {
        const int id = then.lanes[to_index(i)].id;
        if (std::none_of(now.lanes.begin(), now.lanes.end(), [&](const LoggedLane& l) { return l.id == id; }))
            drop(i);
    }
    // Lanes join at the end, so those that existed at the row come first, in their order. But one that was
    // removed before the row and came back since stands between them: then those after it join anew.
    std::size_t same = 0;
    while (same < then.lanes.size() && then.lanes[same].id == now.lanes[same].id) ++same;
    while (then.lanes.size() > std::max<std::size_t>(same, 1)) drop(static_cast<int>(then.lanes.size()) - 1);
    for (std::size_t i = 0; i < lanes.size(); ++i)
        if (i >= then.lanes.size())
            commands.push_back(AddLane{lanes[i]});
        else if (!are_alike(lanes[i], then.lanes[i].spec))
            commands.push_back(SetLane{static_cast<int>(i), lanes[i]});
    if (then.follow != follow) commands.push_back(SetFollow{follow});
    if (!(then.sampling == now.sampling)) commands.push_back(SetSampling{now.sampling});
    return commands;
}

}  // namespace keyhole
