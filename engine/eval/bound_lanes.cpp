#include "engine/eval/bound_lanes.h"

#include "engine/policy/spec_copies.h"

#include <algorithm>
#include <iterator>

namespace keyhole {

namespace {

/// Returns how many tokens a lane attends to: its budget, or what it reads of a cache that keeps all.
Amount size_of(const LaneSpec& lane) {
    const PolicyParams& policy = lane.policy;
    return policy.budget.unit == Amount::Unit::all ? policy.read : policy.budget;
}

/// Returns a bound with the size of a lane and of its heads, what it protects by its place, and the rows in
/// which it evicts: a cache that grows after the prompt has another floor.
LaneSpec bound_of(Preset preset, const LaneSpec& lane, std::uint64_t seed) {
    LaneSpec bound{preset_params(preset), lane.sharing};
    bound.policy.budget = size_of(lane);
    bound.policy.protect = lane.policy.protect;
    std::ranges::copy_if(lane.policy.overrides, std::back_inserter(bound.policy.overrides),
                         [](const Override& o) {
                             return o.field == Override::Field::protect || o.field == Override::Field::budget;
                         });
    bound.policy.heads = lane.policy.heads;
    bound.policy.spans = named_alone(lane.policy.spans);  // a bound is of the whole text
    bound.policy.evict = lane.policy.evict;
    bound.policy.buffer = lane.policy.buffer;
    bound.policy.kv_dtype = lane.policy.kv_dtype;
    bound.policy.seed = seed;
    return bound;
}

}  // namespace

bool has_floor(const LaneSpec& lane) {
    return size_of(lane).unit != Amount::Unit::all;
}

std::string floor_of(const LaneSpec& lane) {
    return format_lane_spec(bound_of(Preset::random, lane, 1));
}

std::vector<LaneSpec> bound_lanes(std::span<const LaneSpec> lanes, int n_seeds, bool knows_text) {
    std::vector<LaneSpec> bounds;
    const auto add = [&](const LaneSpec& bound) {
        if (std::find(bounds.begin(), bounds.end(), bound) == bounds.end() &&
            std::find(lanes.begin(), lanes.end(), bound) == lanes.end())
            bounds.push_back(bound);
    };
    for (const LaneSpec& lane : lanes) {
        if (!has_floor(lane)) continue;
        for (int seed = 1; seed <= n_seeds; ++seed)
            add(bound_of(Preset::random, lane, static_cast<std::uint64_t>(seed)));
        if (knows_text) add(bound_of(Preset::oracle, lane, 1));
    }
    return bounds;
}

}  // namespace keyhole
