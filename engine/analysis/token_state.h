/// Describes in words the state of one token in one KV head of a lane, for the details, captions and context
/// menu. Only reads the history; used on the window's thread; knows no GL.
#pragma once

#include "engine/figure/reduce.h"
#include "engine/trace/run_history.h"

#include <optional>
#include <span>
#include <string>

namespace keyhole {

/// A token's state after a row: whether it is in the cache, and whether the row saw it. future: the row is
/// before it.
enum class TokenPresence { future, attended, hidden, leaving, evicted };
/// attended and leaving: seen by the row; leaving: then evicted by it.
TokenPresence presence(const RunHistory& history, int lane, int kv_head, int position, int row);
/// Returns the same for the mask of a lane: in pictures, hidden tokens are those that stay stored.
CellState mask_state(const RunHistory& history, int lane, int kv_head, int position, int row);
/// Returns text such as "stored, and attended by the row", with the reason if a stored token was hidden.
std::string presence_text(const RunHistory& history, int lane, int kv_head, int position, int row);

/// A token's standing at a row's eviction: its rank among the tokens that compete for the places that
/// protected ones leave.
struct Competition {
    bool competes = false;
    std::string why_not;  ///< if it does not compete: protected, pinned, or gone
    float score = 0;
    float threshold = 0;  ///< lowest score that was retained; NaN: nothing had to leave
    int rank = 0;         ///< 1: highest score
    int n = 0;            ///< number of tokens that compete
    /// score - threshold; evicted if below 0. NaN without a threshold.
    float margin = 0;
};
/// Returns the competition in the KV head that a query head reads; overrides apply per query head. nullopt:
/// no scores are recorded for the row.
std::optional<Competition> competition(const RunHistory& history, int lane, int layer, int head, int position,
                                       int row);

/// The attention of a row to several tokens in one head.
struct AttentionSum {
    double sum = 0;
    int n_seen = 0;  ///< how many of them the row saw
    int n = 0;       ///< how many of them existed
};
/// Sums the attention to positions, without duplicates; those after the row do not count. nullopt: the row is
/// not recorded.
std::optional<AttentionSum> attention_sum(const RunHistory& history, int lane, int row, int layer, int head,
                                          std::span<const int> positions);

/// Returns what evicted a token: "the policy h2o", "by hand (evict 1 34 L2)", "a change (lane 1
/// h2o:budget=32)"; empty while it is held.
std::string eviction_cause(const RunHistory& history, int lane, int kv_head, int position);

}  // namespace keyhole
