/// Decides which running scores a cache keeps for every query head. Pure functions; any thread. Knows
/// policies, no cache.
#pragma once

#include "engine/policy/params.h"

#include <array>
#include <span>
#include <vector>

namespace keyhole {

/// Running scores kept in parallel for every query head, so that a policy switched on during a run does not
/// start from empty scores.
enum Accumulator {
    kSum,         ///< sum of attention: H2O
    kForgetting,  ///< alpha * score + attention: A2SF; runs from the first alpha < 1 on
    kTempered,    ///< sum of the tempered softmax: Keyformer; runs from the first policy that tempers on
    kTemperedForgetting,  ///< both; runs once both of them run
    kByFormula,           ///< what `score` makes of it; runs in lanes that have the formula
    kAccumulators
};

/// Returns the accumulator by which the policy selects; variants have their own.
Accumulator accumulator_of(const ResolvedPolicy& policy);
/// Returns the accumulators that run while the policy is in force: those that it or one of its variants
/// distinguishes, and those that already run. So each of the first four has at any time the value that it
/// would have if all four had run from the start.
std::array<bool, kAccumulators> running_accumulators(const ResolvedPolicy& policy,
                                                     const std::array<bool, kAccumulators>& already = {});
/// Returns the accumulator from which a newly started one is copied, since both are equal so far: itself if
/// it runs, else the one with the same temper, else the one with the same forgetting, else the plain sum.
int nearest_relative(int accumulator, const std::array<bool, kAccumulators>& running);
/// Returns whether a query head gets a formula of rows and had none. Where others of its lane had one, what
/// the head has by formula is older than its sum of attention, from which it begins.
bool begins_formula(const ResolvedPolicy& before, const ResolvedPolicy& now, int layer, int head);
/// Returns such heads of a lane by number: layer * n_heads + head.
std::vector<int> heads_that_begin_a_formula(const ResolvedPolicy& before, const ResolvedPolicy& now,
                                            int n_layers, int n_heads);
/// True when noise is drawn once per token and kept, instead of drawn for each row.
bool draws_token_noise(const ResolvedPolicy& policy);
bool is_forgetting(int accumulator);
bool is_tempered(int accumulator);

/// Rounds scores to the type that they accumulate in.
void round_scores(std::span<float> score, ScoreType type);

}  // namespace keyhole
