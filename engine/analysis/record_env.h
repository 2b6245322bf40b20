/// What a formula sees of stored tokens that a record knows: their places, and scores where they are given.
/// Any thread; knows no history.
#pragma once

#include "engine/policy/place_facts.h"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace keyhole {

/// The tokens of a unit, in text order. For FormulaRun.
struct RecordEnv {
    PlaceFacts facts;
    std::span<const std::int32_t> held;   ///< positions
    std::span<const float> s{};           ///< by index; empty: not known
    std::optional<std::uint64_t> seed{};  ///< of `u`; none: not known
    std::span<const float> win{};         ///< by index; empty: not known

    int budget() const { return facts.budget; }
    float quantity(Quantity q, int i) const;
    /// Returns whether it has all that a formula of selections names.
    bool knows(Quantity q) const;
    bool knows_all(const FormulaTable& formula) const;
    /// Returns a formula's value of each token. competes: as FormulaRun has it.
    std::vector<float> evaluate(const FormulaTable& formula, std::span<const std::uint8_t> competes) const;
};

}  // namespace keyhole
