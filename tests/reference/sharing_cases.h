/// Lanes that share KV heads otherwise than their model, as a backend is told them and as the reference takes them.
#pragma once

#include "tests/reference/engine_run.h"

#include <string>
#include <vector>

namespace reference {

/// Cases of one sharing ("gqa:2", "(mlkv:m=2,g=1),merge=released"): every preset, every scope, every pool, a stepwise prompt, moved
/// positions. weights: of the model shared so.
std::vector<Case> sharing_cases(const std::string& kv, const Weights* weights, int n_decode);

/// Values within tolerance, and no more near ties than rounding explains.
void expect_agreement(const Agreement& agreement);

}  // namespace reference
