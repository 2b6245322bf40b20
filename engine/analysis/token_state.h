/// What became of one token in one KV head of a lane, told in words: for inspector, captions and context menu. Pure reading of a run;
/// window thread; knows no GL.
#pragma once

#include "engine/trace/run_history.h"

#include <optional>
#include <span>
#include <string>

namespace keyhole {

/// After a row: what the cache holds of a token, and whether the row saw it.
enum class TokenPresence { future, attended, hidden, leaving, evicted };
/// attended and leaving: seen by the row; leaving: evicted after it.
TokenPresence presence(const RunHistory& history, int lane, int kv_head, int position, int row);
/// "stored, and attended by the row", with the reason where a stored token was hidden.
std::string presence_text(const RunHistory& history, int lane, int kv_head, int position, int row);

/// How a token stood when the row's eviction chose: its rank among those that compete for the places left by the protected ones.
struct Competition {
    bool competes = false;
    std::string why_not;  ///< when it does not: protected, pinned, or gone
    float score = 0;
    float threshold = 0;  ///< lowest score that stayed; NaN: nothing had to leave
    int rank = 0;         ///< 1: the best
    int n = 0;            ///< that compete
    /// score - threshold; below 0 it went. NaN without a threshold.
    float margin = 0;
};
/// The head as a query head, since overrides are told per query head. nullopt: no scores are recorded for the row.
std::optional<Competition> competition(const RunHistory& history, int lane, int layer, int head, int position,
                                       int row);

/// What a row paid to several tokens in one head.
struct AttentionSum {
    double sum = 0;
    int n_seen = 0;  ///< of them, by the row
    int n = 0;       ///< that were there
};
/// positions: none twice; those after the row do not count. nullopt: the row is not recorded.
std::optional<AttentionSum> attention_sum(const RunHistory& history, int lane, int row, int layer, int head,
                                          std::span<const int> positions);

/// Who evicted a token: "the policy h2o", "by hand (evict 1 34 L2)", "a change (lane 1 h2o:budget=32)"; empty while it is held.
std::string eviction_cause(const RunHistory& history, int lane, int kv_head, int position);

}  // namespace keyhole
