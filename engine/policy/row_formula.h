/// What a formula of `score=(...)` sees of a token in a row, pure, for host and device. Any thread. Knows
/// neither caches nor models.
#pragma once

#include "engine/policy/formula.h"

namespace keyhole {

/// What all tokens of a row of a query head have in common.
struct RowFacts {
    std::int32_t row = 0, n_prompt = 0;
    std::int32_t count = 0;   ///< stored tokens, the row's own included
    std::int32_t budget = 0;  ///< effective
    std::int32_t layer = 0, head = 0, kv_head = 0, window = 0;
    float alpha = 1, tau = 1, gain = 1, mix = 0;
    float sinkmass = 0;  ///< what a learned sink took of the row; models that have one run on the CPU alone
};

struct RowToken {
    float s, p, logit, ptau;
    std::int32_t position, slot;
};

KH_FN float row_quantity(Quantity q, const RowFacts& row, const RowToken& token) {
    switch (q) {
        case Quantity::s:
            return token.s;
        case Quantity::p:
            return token.p;
        case Quantity::logit:
            return token.logit;
        case Quantity::ptau:
            return token.ptau;
        case Quantity::row:
            return static_cast<float>(row.row);
        case Quantity::t:
            return static_cast<float>(row.row < row.n_prompt ? 0 : row.row - row.n_prompt + 1);
        case Quantity::n:
            return static_cast<float>(row.n_prompt);
        case Quantity::count:
            return static_cast<float>(row.count);
        case Quantity::budget:
            return static_cast<float>(row.budget);
        case Quantity::layer:
            return static_cast<float>(row.layer);
        case Quantity::head:
            return static_cast<float>(row.head);
        case Quantity::kvhead:
            return static_cast<float>(row.kv_head);
        case Quantity::alpha:
            return row.alpha;
        case Quantity::tau:
            return row.tau;
        case Quantity::gain:
            return row.gain;
        case Quantity::mix:
            return row.mix;
        case Quantity::window:
            return static_cast<float>(row.window);
        case Quantity::age:
            return static_cast<float>(row.row - token.position);
        case Quantity::position:
            return static_cast<float>(token.position);
        case Quantity::slot:
            return static_cast<float>(token.slot);
        case Quantity::prompt:
            return token.position < row.n_prompt ? 1.0f : 0.0f;
        case Quantity::sinkmass:
            return row.sinkmass;
        default:
            return 0;
    }
}

/// One token, for FormulaRun.
struct RowTokenEnv {
    const RowFacts& row;
    const RowToken& token;
    KH_FN float quantity(Quantity q, int) const { return row_quantity(q, row, token); }
    KH_FN int budget() const { return row.budget; }
};

/// Returns the score that a token has after a row.
KH_FN float score_after_row(const FormulaTable& formula, const RowFacts& row, const RowToken& token) {
    float lists[FormulaTable::kMostOps + 2];
    const RowTokenEnv env{row, token};
    FormulaRun<RowTokenEnv>::Sums sums;
    const FormulaRun<RowTokenEnv> run{env, formula, lists, 1, nullptr, 1, 0, 1, sums};
    for (int o = 0; o < formula.n_ops; ++o) run.by_token(formula.ops[o]);
    return lists[0];
}

}  // namespace keyhole
