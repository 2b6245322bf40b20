#include "engine/backend/common/row_scores.h"

#include "engine/backend/common/accumulators.h"
#include "engine/base/index.h"

#include <algorithm>

namespace keyhole {
namespace {

struct SlotsEnv {
    const ScoredRowOf& of;
    std::span<const float> score;
    std::span<const std::int32_t> ranks;

    float quantity(Quantity q, int i) const {
        switch (q) {  // what most formulas name, first
            case Quantity::s:
                return score[to_index(i)];
            case Quantity::p:
                return of.p[i];
            case Quantity::ptau:
                return of.ptau[i];
            case Quantity::knorm:
                return of.knorm[i];
            case Quantity::vnorm:
                return of.vnorm[i];
            default:
                return row_quantity(
                    q, of.row,
                    {score[to_index(i)], of.p[i], of.logits[i], of.ptau[i],
                     of.positions != nullptr ? of.positions[i] : i, ranks.empty() ? i : ranks[to_index(i)]});
        }
    }
    int budget() const { return of.row.budget; }
};

}  // namespace

void fold_by_formula(const FormulaTable& formula, const ScoredRowOf& of, ScoreType type,
                     std::span<float> score, std::vector<float>& scratch) {
    const int n = static_cast<int>(score.size());
    const std::size_t n_lists = to_index(formula.n_lists) * score.size();
    if (scratch.size() < n_lists) scratch.resize(n_lists);
    std::vector<std::int32_t> ranks;
    if (formula.names(Quantity::slot) && of.positions != nullptr) {
        ranks.resize(score.size());
        for (std::size_t i = 0; i < of.order.size(); ++i)
            ranks[to_index(of.order[i])] = static_cast<std::int32_t>(i);
    }
    const SlotsEnv env{of, score, ranks};
    FormulaRun<SlotsEnv>::Sums sums;
    const FormulaRun<SlotsEnv> run{env, formula, scratch.data(), n, nullptr, n, 0, 1, sums};
    for (int o = 0; o < formula.n_ops; ++o) run.by_token(formula.ops[o]);
    std::copy_n(scratch.begin(), n, score.begin());
    round_scores(score, type);
}

}  // namespace keyhole
