/// The life of one token in a lane, for the page that says why it went: where it is held, where it was evicted, by whom, its score
/// against the threshold in every KV head, and what a full lane still paid to it. Pure reading; window thread; knows no GL.
#pragma once

#include "engine/trace/run_history.h"

#include <string>
#include <vector>

namespace keyhole {

struct TokenLifetime {
    struct Head {
        int evicted_at = -1;                  ///< row; -1: held
        std::vector<float> score, threshold;  ///< one a record, NaN where there is none
    };
    int lane = 0, position = 0;
    std::vector<Head> heads;  ///< [KV head]
    std::vector<float>
        full_attention;  ///< one a record: lane 0's attention on it, mean over the query heads that had lost it; NaN: none had
    bool full_known = false;  ///< lane 0 keeps everything and read the same text
    int n_holding(int row) const;
    /// Rows at which the first and the last head lost it; -1: none did.
    int first_gone() const;
    int last_gone() const;
};

/// lane: index into history.lanes().
TokenLifetime token_lifetime(const RunHistory& history, int lane, int position);

/// Rule and place by which a query head let a token go, in sentences: "by the policy h2o: lowest of 41 that competed; ...". Empty while held.
std::string eviction_story(const RunHistory& history, int lane, int layer, int head, int position);

}  // namespace keyhole
