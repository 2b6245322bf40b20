#include "engine/session/checkpoints.h"

#include <algorithm>

namespace keyhole {

SessionState SessionState::copy() const {
    SessionState state;
    for (const Lane& lane : lanes) state.lanes.push_back(lane.copy());
    state.next_lane_id = next_lane_id;
    state.follow = follow;
    state.sampling = sampling;
    state.row = row;
    state.forced = forced;
    state.history = history;
    state.commands_since = commands_since;
    return state;
}

std::size_t SessionState::bytes() const {
    std::size_t sum = history.size() * sizeof(int);
    for (const Lane& lane : lanes)
        sum += static_cast<std::size_t>(lane.cache->use().allocated_bytes) +
               (lane.log_probs.size() + lane.out.next_logits.size()) * sizeof(float) +
               lane.tokens.size() * sizeof(int) + lane.left.size() * sizeof(lane.left[0]);
    return sum;
}

void Checkpoints::offer(const SessionState& state) {
    if (budget_ == 0) return;
    const std::size_t bytes = state.bytes();
    if (bytes > budget_ / 4) return;
    // A row more for each MB: copying stays a small share of decoding, which reads the weights.
    const int spacing = std::max(spacing_, static_cast<int>(bytes >> 20));
    if (!kept_.empty() && state.row - kept_.back().state.row < spacing) return;
    kept_.push_back({state.copy(), bytes});
    bytes_ += bytes;
    while (bytes_ > budget_) {
        spacing_ *= 2;
        std::vector<Kept> thinned;
        for (std::size_t i = 0; i < kept_.size(); i += 2) thinned.push_back(std::move(kept_[i]));
        kept_ = std::move(thinned);
        bytes_ = 0;
        for (const Kept& kept : kept_) bytes_ += kept.bytes;
    }
}

const SessionState* Checkpoints::latest(int row) const {
    const SessionState* found = nullptr;
    for (const Kept& kept : kept_)
        if (kept.state.row <= row) found = &kept.state;
    return found;
}

void Checkpoints::drop_after(int row) {
    while (!kept_.empty() && kept_.back().state.row > row) {
        bytes_ -= kept_.back().bytes;
        kept_.pop_back();
    }
}

}  // namespace keyhole
