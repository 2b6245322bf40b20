/// One policy decoding beside others: owns its cache and what its last row gave. Session's thread; known to
/// session only.
#pragma once

#include "engine/session/session.h"

#include <memory>
#include <string>
#include <vector>

namespace keyhole {

struct Lane {
    int id = 0;
    LaneSpec spec;
    std::shared_ptr<const LaneInfo> info;  ///< holds the policy in force
    std::unique_ptr<KvCache> cache;
    RowOutput out;                  ///< of the last row
    std::vector<float> log_probs;   ///< [n_vocab] after the last row
    int predicted = 0;              ///< own choice for the next row
    int token = 0;                  ///< consumed at the last row
    float token_log_prob = 0;       ///< that the row before gave to it
    std::vector<Eviction> pending;  ///< by commands and catching up, for the next record
    bool diverged = false;          ///< consumed another token than lane 0 did: its columns mean other tokens
    bool ended = false;
    std::string failure;
    bool out_is_new = false;  ///< `out` is of the row to be recorded

    bool active() const { return !ended && failure.empty(); }
    const ResolvedPolicy& policy() const { return info->policy; }
};

}  // namespace keyhole
