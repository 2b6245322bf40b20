/// What a formula of `score=(...)` sees of a token in a row, pure, for host and device. Any thread. Knows
/// neither caches nor models.
#pragma once

#include "engine/policy/quantity_table.h"

namespace keyhole {

/// Returns a quantity of a token of a row; 0: only selections know it.
KH_FN float row_quantity(Quantity q, const PlaceFacts& row, const RowToken& token) {
    float value = 0;
    find_quantity(q, row.at(token.position, token.slot), &token, value);
    return value;
}

/// One token, for FormulaRun.
struct RowTokenEnv {
    const PlaceFacts& row;
    const RowToken& token;
    KH_FN float quantity(Quantity q, int) const { return row_quantity(q, row, token); }
    KH_FN int budget() const { return row.budget; }
};

/// Returns the score that a token has after a row.
KH_FN float score_after_row(const FormulaTable& formula, const PlaceFacts& row, const RowToken& token) {
    float lists[FormulaTable::kMostOps + 2];
    const RowTokenEnv env{row, token};
    FormulaRun<RowTokenEnv>::Sums sums;
    const FormulaRun<RowTokenEnv> run{env, formula, lists, 1, nullptr, 1, 0, 1, sums};
    for (int o = 0; o < formula.n_ops; ++o) run.by_token(formula.ops[o]);
    return lists[0];
}

}  // namespace keyhole
