/// What a policy tells formulas of a place. Pure; any thread; host alone.
#pragma once

#include "engine/policy/params.h"
#include "engine/policy/quantity_table.h"

namespace keyhole {

/// own: of the unit or the query head. head: 0 at a selection.
inline PlaceFacts place_facts(const ResolvedPolicy& own, int row, int count, int layer, int head,
                              int kv_head) {
    return {row,     own.n_prompt, count,     own.budget,      layer,    head,
            kv_head, own.window,   own.alpha, own.tau_at(row), own.gain, own.mix};
}

/// Writes a quantity that follows from the place, of n tokens; the first is the slot-th of its unit.
template <int kRow = 0>
void fill_from_place(Quantity q, const PlaceFacts& facts, const std::int32_t* positions, std::int32_t slot,
                     int n, float* out) {
    if constexpr (kRow < kQuantities) {
        constexpr QuantityRow kOf = kQuantityTable[kRow];
        if (q != kOf.quantity) return fill_from_place<kRow + 1>(q, facts, positions, slot, n, out);
        for (int i = 0; i < n; ++i) {
            const PlaceFacts at = facts.at(positions[i], slot + i);
            if constexpr (kOf.whole != nullptr)
                out[i] = static_cast<float>(at.*kOf.whole);
            else if constexpr (kOf.number != nullptr)
                out[i] = at.*kOf.number;
        }
    }
}

}  // namespace keyhole
