/// FNV-1a, 64 bits: tells texts and files apart; not for security. Any thread.
#pragma once

#include <cstdint>
#include <string_view>

namespace keyhole {

inline constexpr std::uint64_t kFnvBasis = 0xcbf29ce484222325u, kFnvPrime = 0x100000001b3u;

/// Adds bytes to a hash, one at a time:
///     hash <- (hash ^ byte) * prime
constexpr std::uint64_t fnv1a(std::string_view bytes, std::uint64_t hash = kFnvBasis) {
    for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * kFnvPrime;
    return hash;
}

}  // namespace keyhole
