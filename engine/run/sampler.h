/// Chooses the next token from logits: greedily, or by temperature, top-k and top-p. Pure functions, for any
/// thread. Knows commands' Sampling, but no session.
#pragma once

#include "engine/run/command.h"

#include <cstdint>
#include <span>

namespace keyhole {

/// Limits of what a user may set: temperatures from 0 to kHottest, top_p from kLeastMass to 1.
inline constexpr double kHottest = 100, kLeastMass = 1e-6;
/// Limits of repetition_penalty.
inline constexpr double kLeastPenalty = 0.01, kMostPenalty = 100;

/// Returns one uniform number in (0, 1) for each (seed, row), so that equal logits give equal tokens in all
/// lanes.
float sampling_uniform(std::uint64_t seed, int row);

/// Returns the most likely token if temperature is 0, the lowest id among equals. Otherwise draws from
/// softmax(logits / temperature), cut to the top_k most likely tokens and to the smallest set with top_p of
/// the mass. `uniform` selects the token along descending probability.
int choose_token(std::span<const float> logits, const Sampling& sampling, float uniform);

}  // namespace keyhole
