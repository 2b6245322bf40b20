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

}  // namespace keyhole
