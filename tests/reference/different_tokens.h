/// Prompts without equal tokens.
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <random>
#include <vector>

namespace reference {

/// Returns bytes in a seeded order, none twice: in the first layer the keys of equal tokens are equal in
/// length, so that they tie, and rounding decides which of them leaves.
inline std::vector<int> different_tokens(int n, unsigned seed) {
    std::vector<int> tokens(256);
    std::iota(tokens.begin(), tokens.end(), 0);
    std::mt19937 random(seed);
    std::shuffle(tokens.begin(), tokens.end(), random);
    tokens.resize(static_cast<std::size_t>(n));
    return tokens;
}

}  // namespace reference
