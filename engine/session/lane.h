/// One policy decoding beside others: owns its cache and the results of its last row. Used on the session's
/// thread, by the session only.
#pragma once

#include "engine/backend/backend.h"
#include "engine/run/command.h"
#include "engine/trace/record.h"

#include <memory>
#include <string>
#include <vector>

namespace keyhole {

/// What a lane has still to read, and where the user's last turn ended in its text. Lanes with texts of their
/// own end their answers at different rows, so each has its own.
struct ReadingState {
    std::vector<int> forced;  ///< tokens that its next rows consume, in order
    int turn_end = -1;        ///< row of the last token that a user said; -1: the prompt
    int n_heard = 0;          ///< of SessionState::to_say

    /// Queues tokens behind those that wait, or in their place.
    void queue(const ForceTokens& more) {
        if (more.instead) forced.clear();
        forced.insert(forced.end(), more.tokens.begin(), more.tokens.end());
    }
    /// Takes what the lane has just consumed from what it has to read.
    void note_read() {
        if (!forced.empty()) forced.erase(forced.begin());
    }
};

/// All of a lane except its cache.
struct LaneState {
    int id = 0;
    LaneSpec spec;
    std::shared_ptr<const Model> model;             ///< its KV heads are shared as the spec says
    std::shared_ptr<const LaneInfo> info;           ///< holds the policy in force
    RowOutput out;                                  ///< of the last row
    std::vector<float> log_probs;                   ///< [n_vocab] after the last row
    int predicted = 0;                              ///< its own choice for the next row
    int token = 0;                                  ///< consumed at the last row
    float token_log_prob = 0;                       ///< log probability of `token` by the row before
    std::vector<Eviction> pending;                  ///< by commands and replay, for the next record
    std::shared_ptr<const PinList> pins;            ///< null: none
    std::shared_ptr<const PromptRows> prompt_rows;  ///< see LaneRecord; for the record that ends the prompt
    bool diverged = false;  ///< consumed another token than lane 0 did: its positions hold other tokens
    bool ended = false;
    std::string failure;
    bool out_is_new = false;  ///< `out` is of the row to be recorded
    bool recorded = false;    ///< at least one record contains the lane
    ReadingState reading;

    // The lane's history, including its parent's before a fork: enough to replay it from the prompt.
    LaneSpec initial_spec;
    std::vector<int> tokens;  ///< consumed in decode rows
    /// SetLane, EvictToken, PinToken and UnpinToken that were applied to it, and ForceTokens with what it had
    /// to read from then on, which lanes that rank by `future` know ahead.
    std::vector<LoggedCommand> log;
    /// Evictions by row, for messages of refused commands and for counterfactual(). Shared by copies.
    std::vector<std::shared_ptr<const std::vector<Eviction>>> left;

    bool active() const { return !ended && failure.empty(); }
    const ResolvedPolicy& policy() const { return info->policy; }
};

struct Lane : LaneState {
    std::unique_ptr<KvCache> cache;

    /// Returns a lane with the same state and another cache.
    Lane with_cache(std::unique_ptr<KvCache> other) const {
        Lane lane;
        static_cast<LaneState&>(lane) = *this;
        lane.cache = std::move(other);
        return lane;
    }
    /// Returns an exact copy, without the values of the last row, which are in its record.
    Lane copy() const {
        Lane lane = with_cache(cache->clone());
        lane.out.drop_values();
        return lane;
    }
};

}  // namespace keyhole
