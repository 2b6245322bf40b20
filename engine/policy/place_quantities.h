/// What a formula may name of a stored token by its place alone: all but what its key, value, score or
/// attention tell. Values of one selection; any thread.
#pragma once

#include "engine/model/kv_layout.h"
#include "engine/policy/formula.h"
#include "engine/policy/params.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace keyhole {

struct PlaceQuantities {
    const ResolvedPolicy& policy;
    const KvHead& head;  ///< the unit's first
    int row;             ///< after which is selected
    std::size_t count;   ///< stored tokens of the unit
    float tau;           ///< of the row

    /// Returns the quantity of the token at a position, the slot-th of the unit; nullopt: its place does not
    /// tell it.
    std::optional<float> of(Quantity q, std::int32_t position, int slot) const {
        switch (q) {
            case Quantity::row:
                return static_cast<float>(row);
            case Quantity::t:
                return static_cast<float>(std::max(row - policy.n_prompt + 1, 0));
            case Quantity::n:
                return static_cast<float>(policy.n_prompt);
            case Quantity::count:
                return static_cast<float>(count);
            case Quantity::budget:
                return static_cast<float>(policy.budget);
            case Quantity::layer:
                return static_cast<float>(head.owner_layer);
            case Quantity::kvhead:
                return static_cast<float>(head.index);
            case Quantity::alpha:
                return policy.alpha;
            case Quantity::tau:
                return tau;
            case Quantity::gain:
                return policy.gain;
            case Quantity::mix:
                return policy.mix;
            case Quantity::window:
                return static_cast<float>(policy.window);
            case Quantity::age:
                return static_cast<float>(row - position);
            case Quantity::position:
                return static_cast<float>(position);
            case Quantity::slot:
                return static_cast<float>(slot);
            case Quantity::prompt:
                return position < policy.n_prompt ? 1.0f : 0.0f;
            default:
                return std::nullopt;
        }
    }
};

}  // namespace keyhole
