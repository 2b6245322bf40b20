/// What a lane would rank by formulas that it does not have: the question and the answer. Plain values, for
/// any thread; the session computes it.
#pragma once

#include "engine/policy/ranked_unit.h"

#include <optional>

namespace keyhole {

struct RanksRequest {
    int lane = 0;  ///< index
    int kv_head = 0;
    RankFormulas by{};
    bool operator==(const RanksRequest&) const = default;
};

/// Of the tokens that the unit of the KV head stores after a row.
struct Ranks {
    RanksRequest asked{};
    int lane_id = 0;
    int row = 0;
    RankedUnit of{};
    /// A quantity that the formulas name and this lane does not know; then nothing is ranked.
    std::optional<Quantity> missing{};
};

}  // namespace keyhole
