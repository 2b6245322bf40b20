/// Which running scores a cache keeps for every query head. Pure functions; any thread.
#pragma once

#include "engine/policy/params.h"

#include <array>
#include <span>

namespace keyhole {

/// Scores kept beside each other for every query head, so that a policy switched on in mid-run does not start
/// from empty ones.
enum Accumulator {
    kSum,                 ///< sum of attention: H2O
    kForgetting,          ///< alpha * score + attention: A2SF; from the first alpha < 1 on
    kTempered,            ///< sum of the tempered softmax: Keyformer; from the first policy on that tempers
    kTemperedForgetting,  ///< both; from when both run on
    kAccumulators
};

/// The accumulator that the policy selects by; variants have their own.
Accumulator accumulator_of(const ResolvedPolicy& policy);
/// The accumulators that run while the policy is in force: all that it or one of its variants tells apart, and those that run already,
/// so that each is at any time what it would be had all four run from the start.
std::array<bool, kAccumulators> running_accumulators(const ResolvedPolicy& policy,
                                                     const std::array<bool, kAccumulators>& already = {});
/// The accumulator that a newly running one starts from, being equal up to now: itself, else the one that shares its temper, its
/// forgetting, the plain sum.
int nearest_relative(int accumulator, const std::array<bool, kAccumulators>& running);
/// Noise is kept with the tokens rather than drawn for each row.
bool draws_token_noise(const ResolvedPolicy& policy);
bool is_forgetting(int accumulator);
bool is_tempered(int accumulator);

/// Rounds scores to the type that they accumulate in.
void round_scores(std::span<float> score, ScoreType type);

}  // namespace keyhole
