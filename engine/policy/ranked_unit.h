/// What a selection would rank by formulas that a lane does not have yet. Plain values, for any thread.
#pragma once

#include "engine/policy/formula.h"

#include <cstdint>
#include <vector>

namespace keyhole {

/// Formulas in place of a lane's own, for all of its heads. None: the pooled scores; sinks and newest alone.
struct RankFormulas {
    FormulaRef choose{}, protect{};
    /// `win` by position, for a cache that keeps no rows of attention; empty: not known.
    std::vector<float> win{};
    bool operator==(const RankFormulas&) const = default;
};

/// The tokens that a unit stores, in text order, and what is ranked of each.
struct RankedUnit {
    std::vector<std::int32_t> positions{};
    std::vector<float> values{};
    std::vector<float> ties{};            ///< what orders equal values; empty: their age alone
    std::vector<std::int32_t> guarded{};  ///< positions that are pinned or protected, ascending
};

}  // namespace keyhole
