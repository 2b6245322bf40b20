/// Evaluates a formula that looks at one token at a time for 64 tokens together, on the host: each operation
/// is a loop over 64 numbers that the compiler turns into instructions on vectors, and the lists stay in the
/// first cache. Same bits as FormulaRun for all tokens at once. Any thread; knows no cache.
#pragma once

#include "engine/policy/formula.h"

#include <algorithm>

namespace keyhole {

inline constexpr int kColumn = 64;
/// Numbers that the lists of any formula take.
inline constexpr int kColumnLists = (FormulaTable::kMostOps + 2) * kColumn;

/// Returns the values of n tokens, at most kColumn. fill(q, out) writes the n numbers of a quantity. lists:
/// [kColumnLists]
template <class Fill>
[[gnu::flatten]] const float* evaluate_column(const FormulaTable& formula, int n, float* lists, Fill fill) {
    struct NoQuantities {
        float quantity(Quantity, int) const { return 0; }
        int budget() const { return 0; }
    };
    const NoQuantities none;
    typename FormulaRun<NoQuantities>::Sums unused;
    const FormulaRun<NoQuantities> run{none, formula, lists, kColumn, nullptr, kColumn, 0, 1, unused};
    for (int o = 0; o < formula.n_ops; ++o) {
        const FormulaOp& op = formula.ops[o];
        if (op.code != FormulaCode::quantity) {
            run.by_token(op);
            continue;
        }
        float* column = run.list(op.level);
        fill(op.quantity, column);
        std::fill(column + n, column + kColumn, 0.0f);
    }
    return lists;
}

}  // namespace keyhole
