/// One policy decoding beside others: owns its cache and what its last row gave. Session's thread; known to
/// session only.
#pragma once

#include "engine/session/session.h"

#include <memory>
#include <string>
#include <vector>

namespace keyhole {

/// All of a lane but its cache.
struct LaneState {
    int id = 0;
    LaneSpec spec;
    std::shared_ptr<const Model> model;             ///< with its KV heads shared as the spec says
    std::shared_ptr<const LaneInfo> info;           ///< holds the policy in force
    RowOutput out;                                  ///< of the last row
    std::vector<float> log_probs;                   ///< [n_vocab] after the last row
    int predicted = 0;                              ///< own choice for the next row
    int token = 0;                                  ///< consumed at the last row
    float token_log_prob = 0;                       ///< that the row before gave to it
    std::vector<Eviction> pending;                  ///< by commands and catching up, for the next record
    std::shared_ptr<const PinList> pins;            ///< null: none
    std::shared_ptr<const PromptRows> prompt_rows;  ///< for the record that ends the prompt: see LaneRecord
    bool diverged = false;  ///< consumed another token than lane 0 did: its columns mean other tokens
    bool ended = false;
    std::string failure;
    std::shared_ptr<const RowBlock> rows;  ///< of `out`, for its record; null: not made yet or not wanted
    bool out_is_new = false;               ///< `out` is of the row to be recorded
    bool recorded = false;                 ///< a record has told of it

    // Its life, a parent's before a fork included: enough to live it again from the prompt.
    LaneSpec initial_spec;
    std::vector<int> tokens;         ///< consumed in decode rows
    std::vector<LoggedCommand> log;  ///< SetLane, EvictToken, PinToken, UnpinToken that it met
    /// Evictions by row, for what a refusal says; shared by copies.
    std::vector<std::shared_ptr<const std::vector<Eviction>>> left;

    bool active() const { return !ended && failure.empty(); }
    const ResolvedPolicy& policy() const { return info->policy; }
};

struct Lane : LaneState {
    std::unique_ptr<KvCache> cache;

    /// An exact copy, without the values of the last row, which its record has.
    Lane copy() const {
        Lane lane;
        static_cast<LaneState&>(lane) = *this;
        lane.out.values = {};
        lane.cache = cache->clone();
        return lane;
    }
};

}  // namespace keyhole
