/// Choosing the next token from logits. Pure; any thread.
#pragma once

#include "engine/session/command.h"

#include <cstdint>
#include <span>

namespace keyhole {

/// What a user may ask for: temperatures from 0 to this, and a top_p from this to 1.
inline constexpr double kHottest = 100, kLeastMass = 1e-6;

/// One uniform number in (0, 1) for each (seed, row): equal logits give equal tokens in all lanes.
float sampling_uniform(std::uint64_t seed, int row);

/// temperature 0: the most likely token, the lowest id among equals. Else a draw from softmax(logits /
/// temperature), cut to the top_k most likely and to the smallest set that holds top_p of the mass; `uniform`
/// decides, along descending probability.
int choose_token(std::span<const float> logits, const Sampling& sampling, float uniform);

}  // namespace keyhole
