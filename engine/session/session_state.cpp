#include "engine/session/session_state.h"

#include "engine/base/error.h"
#include "engine/base/index.h"

#include <algorithm>

namespace keyhole {

namespace {

void check_lane(int index, std::size_t n_lanes) {
    if (index < 0 || to_index(index) >= n_lanes)
        fail(ErrorCode::wrong_use, "lane {} does not exist; there are lanes 0 to {}", index, n_lanes - 1);
}

}  // namespace

SessionState SessionState::copy() const {
    SessionState state;
    for (const Lane& lane : lanes) state.lanes.push_back(lane.copy());
    state.removed = removed;
    state.next_lane_id = next_lane_id;
    state.follow = follow;
    state.sampling = sampling;
    state.row = row;
    state.to_say = to_say;
    state.history = history;
    state.commands_since = commands_since;
    return state;
}

int SessionState::id_for_new_lane() const {
    if (next_lane_id >= kMostLanes)
        fail(ErrorCode::wrong_use,
             "no lane can be added: this run has had {}, removed ones included, and a trace holds no more; "
             "start a new run",
             next_lane_id);
    return next_lane_id;
}

int SessionState::turn_end() const {
    int last = -1;
    for (const Lane& lane : lanes) last = std::max(last, lane.reading.turn_end);
    return last;
}

std::size_t SessionState::bytes() const {
    std::size_t sum = history.size() * sizeof(int);
    for (const RemovedLane& lane : removed) sum += lane.past.tokens.size() * sizeof(int);
    for (const Lane& lane : lanes) {
        const CacheUse use = lane.cache->use();
        sum += to_index(use.allocated_bytes + use.shadow_bytes) +
               (lane.log_probs.size() + lane.out.next_logits.size()) * sizeof(float) +
               lane.tokens.size() * sizeof(int) + lane.left.size() * sizeof(lane.left[0]);
    }
    return sum;
}

const Lane& SessionState::lane_at(int index) const {
    check_lane(index, lanes.size());
    return lanes[to_index(index)];
}

Lane& SessionState::lane_at(int index) {
    check_lane(index, lanes.size());
    return lanes[to_index(index)];
}

void SessionState::discard_outputs() {
    commands_since.clear();
    for (Lane& lane : lanes) {
        lane.pending.clear();
        lane.out_is_new = false;
        lane.recorded = true;
        lane.out.drop_values();
    }
}

}  // namespace keyhole
