#include "engine/analysis/record_env.h"

#include "engine/base/index.h"

#include <algorithm>

namespace keyhole {

float RecordEnv::quantity(Quantity q, int i) const {
    const std::int32_t position = held[to_index(i)];
    if (q == Quantity::s) return s[to_index(i)];
    if (q == Quantity::win) return win[to_index(i)];
    if (q == Quantity::u)
        return uniform_at(seed.value_or(0), facts.layer, facts.kv_head, facts.row, position);
    float value = 0;
    find_quantity(q, facts.at(position, i), nullptr, value);
    return value;
}

bool RecordEnv::knows(Quantity q) const {
    if (q == Quantity::s) return !s.empty();
    if (q == Quantity::win) return !win.empty();
    if (q == Quantity::u) return seed.has_value();
    return row_of(q).known_by == KnownBy::place;
}

bool RecordEnv::knows_all(const FormulaTable& formula) const {
    return std::ranges::all_of(kQuantityTable, [&](const QuantityRow& row) {
        return !formula.names(row.quantity) || knows(row.quantity);
    });
}

std::vector<float> RecordEnv::evaluate(const FormulaTable& formula,
                                       std::span<const std::uint8_t> competes) const {
    const int n = static_cast<int>(held.size());
    std::vector<float> lists(to_index(formula.n_lists) * held.size());
    FormulaRun<RecordEnv>::Sums sums;
    const FormulaRun<RecordEnv> run{*this, formula, lists.data(), n, competes.data(), n, 0, 1, sums};
    for (int step = 0; step < formula.n_steps; ++step) run.step(step);
    lists.resize(held.size());
    return lists;
}

}  // namespace keyhole
