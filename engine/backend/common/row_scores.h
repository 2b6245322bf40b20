/// Folds a row into scores by a formula of `score=(...)`, on the host. Pure functions; any thread; knows no
/// cache. CUDA twins: FoldByFormula in backend/cuda/kernels/attention.h, FoldTileByFormula in prompt.h.
#pragma once

#include "engine/policy/place_facts.h"
#include "engine/policy/row_formula.h"

#include <span>
#include <vector>

namespace keyhole {

/// A row of one query head, by slot.
struct ScoredRowOf {
    PlaceFacts row;
    const float* p = nullptr;
    const float* logits = nullptr;
    const float* ptau = nullptr;              ///< p where nothing tempers
    const std::int32_t* positions = nullptr;  ///< null: slot i holds position i
    std::span<const std::int32_t> order{};    ///< slots by position, where positions are given
    /// Lengths of the stored keys and values, and how far values reach, where they are named.
    const float *knorm = nullptr, *vnorm = nullptr, *wvnorm = nullptr;
};

/// Returns whether a formula of `score` names lengths of keys or values.
inline bool names_lengths(const FormulaRef& score) {
    return score && (score->names(Quantity::knorm) || score->names(Quantity::vnorm));
}

/// Returns whether it names how far values reach.
inline bool names_reach(const FormulaRef& score) {
    return score && score->names(Quantity::wvnorm);
}

/// Replaces the scores of n slots by what the formula makes of them, rounded to the type. scratch: reused.
void fold_by_formula(const FormulaTable& formula, const ScoredRowOf& of, ScoreType type,
                     std::span<float> score, std::vector<float>& scratch);

}  // namespace keyhole
