#include "engine/backend/cpu/slot_choice.h"

#include "engine/backend/common/formula_column.h"
#include "engine/base/index.h"
#include "engine/policy/formula_maths.h"
#include "engine/policy/place_facts.h"

#include <algorithm>
#include <span>

namespace keyhole::cpu {
namespace {

bool is_known_by_slot(const CpuKvCache& cache, const Unit& unit, Quantity q) {
    if (row_of(q).known_by == KnownBy::place) return q != Quantity::slot;
    if (q == Quantity::s || q == Quantity::u) return true;
    return unit.n_heads() == 1 && cache.lengths(q, unit.first) != nullptr;
}

/// What a column is filled from.
struct SlotFacts {
    const CpuKvCache& cache;
    int head;
    PlaceFacts place;
    std::uint64_t seed;
    const float* pooled;
};

/// Writes a quantity of n tokens from a slot on.
void fill_column(Quantity q, const SlotFacts& of, int first, int n, float* out) {
    const std::int32_t* positions = of.cache.positions(of.head) + first;
    if (q == Quantity::s) {
        std::copy_n(of.pooled + first, n, out);
    } else if (q == Quantity::u) {
        for (int i = 0; i < n; ++i)
            out[i] = uniform_at(of.seed, of.place.layer, of.place.kv_head, of.place.row, positions[i]);
    } else if (const float* lengths = of.cache.lengths(q, of.head)) {
        std::copy_n(lengths + first, n, out);
    } else {
        fill_from_place(q, of.place, positions, 0, n, out);
    }
}

}  // namespace

bool ranks_by_slot(const CpuKvCache& cache, const Unit& unit, const ResolvedPolicy& policy) {
    if (!policy.choose || policy.protect || policy.choose.unsmoothed() != nullptr) return false;
    const std::span<const FormulaOp> ops(policy.choose->ops, to_index(policy.choose->n_ops));
    return std::all_of(ops.begin(), ops.end(), [&](const FormulaOp& op) {
        return !is_over_tokens(op.code) &&
               (op.code != FormulaCode::quantity || is_known_by_slot(cache, unit, op.quantity));
    });
}

void rank_slots(const CpuKvCache& cache, const Unit& unit, const ResolvedPolicy& policy, int row,
                const float* pooled, std::vector<float>& ranked) {
    const int g = unit.first, n = cache.count(g);
    const KvHead& head = cache.layout().kv_head(g);
    const SlotFacts of{cache, g, place_facts(policy, row, n, head.owner_layer, 0, head.index), policy.seed,
                       pooled};
    if (ranked.size() < to_index(n)) ranked.resize(to_index(n));
    float lists[kColumnLists];
    for (int first = 0; first < n; first += kColumn) {
        const int n_here = std::min(kColumn, n - first);
        const float* values = evaluate_column(*policy.choose, n_here, lists, [&](Quantity q, float* out) {
            fill_column(q, of, first, n_here, out);
        });
        std::copy_n(values, n_here, ranked.data() + first);
    }
}

}  // namespace keyhole::cpu
