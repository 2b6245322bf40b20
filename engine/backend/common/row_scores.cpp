#include "engine/backend/common/row_scores.h"

#include "engine/backend/common/accumulators.h"
#include "engine/backend/common/formula_column.h"
#include "engine/base/index.h"

#include <algorithm>

namespace keyhole {
namespace {

/// Writes a quantity of n slots from one on. ranks: of the slots by position; empty: slot i has rank i.
void fill_row(Quantity q, const ScoredRowOf& of, std::span<const float> score,
              std::span<const std::int32_t> ranks, int first, int n, float* out) {
    const auto from = [&](const float* values) { std::copy_n(values + first, n, out); };
    if (q == Quantity::s) return from(score.data());
    if (q == Quantity::p) return from(of.p);
    if (q == Quantity::ptau) return from(of.ptau);
    if (q == Quantity::logit) return from(of.logits);
    if (q == Quantity::knorm) return from(of.knorm);
    if (q == Quantity::vnorm) return from(of.vnorm);
    if (q == Quantity::wvnorm) return from(of.wvnorm);
    if (q == Quantity::slot) {
        for (int i = 0; i < n; ++i)
            out[i] = static_cast<float>(ranks.empty() ? first + i : ranks[to_index(first + i)]);
        return;
    }
    std::int32_t in_order[kColumn];
    for (int i = 0; i < n && of.positions == nullptr; ++i) in_order[i] = first + i;
    fill_from_place(q, of.row, of.positions != nullptr ? of.positions + first : in_order, 0, n, out);
}

}  // namespace

void fold_by_formula(const FormulaTable& formula, const ScoredRowOf& of, ScoreType type,
                     std::span<float> score, std::vector<float>& scratch) {
    const int n = static_cast<int>(score.size());
    if (scratch.size() < to_index(kColumnLists)) scratch.resize(to_index(kColumnLists));
    std::vector<std::int32_t> ranks;
    if (formula.names(Quantity::slot) && of.positions != nullptr) {
        ranks.resize(score.size());
        for (std::size_t i = 0; i < of.order.size(); ++i)
            ranks[to_index(of.order[i])] = static_cast<std::int32_t>(i);
    }
    for (int first = 0; first < n; first += kColumn) {
        const int n_here = std::min(kColumn, n - first);
        const float* values = evaluate_column(formula, n_here, scratch.data(), [&](Quantity q, float* out) {
            fill_row(q, of, score, ranks, first, n_here, out);
        });
        std::copy_n(values, n_here, score.data() + first);
    }
    round_scores(score, type);
}

}  // namespace keyhole
