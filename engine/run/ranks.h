/// What a lane would rank by formulas that it does not have: the question and the answer. Plain values, for
/// any thread; the session computes it.
#pragma once

#include "engine/policy/ranked_unit.h"
#include "engine/trace/record.h"

#include <memory>
#include <optional>
#include <string>

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
    int row = 0;
    std::shared_ptr<const LaneInfo> info{};  ///< of the lane as it is: records may be of earlier settings
    RankedUnit of{};
    /// A quantity that the formulas name and this lane does not know; then nothing is ranked.
    std::optional<Quantity> missing{};
    std::string why_not{};  ///< any other reason, one sentence; then nothing is ranked either
};

}  // namespace keyhole
