/// The history of one token in a lane, for the page that explains its eviction: which heads hold it, when and
/// why it was evicted, its score and the threshold in every KV head, and the attention that a full lane still
/// gives to it. Only reads the history; window's thread; knows no GL.
#pragma once

#include "engine/trace/run_history.h"

#include <string>
#include <vector>

namespace keyhole {

struct TokenLifetime {
    struct Head {
        int evicted_at = -1;                  ///< row; -1: still held
        std::vector<float> score, threshold;  ///< one per record, NaN where there is none
    };
    int lane = 0, position = 0;
    std::vector<Head> heads;  ///< [KV head]
    /// One per record: lane 0's attention on it, mean over the query heads that have lost it; NaN: none has.
    std::vector<float> full_attention;
    bool full_known = false;  ///< lane 0 is another lane and keeps everything
    int n_holding(int row) const;
    /// Return the rows at which the first and the last head lost it; -1: none did.
    int first_gone() const;
    int last_gone() const;
};

/// Collects the history of a token. lane: index into history.lanes().
TokenLifetime token_lifetime(const RunHistory& history, int lane, int position);

/// Returns a sentence: how many KV heads have evicted the token, and after which steps.
std::string evictions_text(const TokenLifetime& lifetime);

/// Returns in sentences why a query head evicted a token: "by the policy h2o: lowest of 41 that competed;
/// ...". Empty while the token is held.
std::string eviction_story(const RunHistory& history, int lane, int layer, int head, int position);

}  // namespace keyhole
