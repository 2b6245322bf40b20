/// A stable 64-bit digest of bytes that names models in logs and traces; not for security. Any thread.
#pragma once

#include "engine/base/fnv.h"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace keyhole {

inline constexpr std::uint64_t kDigestSeed = kFnvBasis;

/// Adds one word: as fnv1a(), on 64 bits at a time, and rotated so that high bits reach low ones (two flipped
/// float signs must not cancel).
inline std::uint64_t digest_word(std::uint64_t digest, std::uint64_t word) {
    return std::rotl((digest ^ word) * 0x9e3779b97f4a7c15u, 29);
}

/// Adds bytes: little-endian words, the last one padded with zeros, then the length.
inline std::uint64_t digest_bytes(std::uint64_t digest, std::span<const std::byte> bytes) {
    std::size_t i = 0;
    std::uint64_t word = 0;
    for (; i + 8 <= bytes.size(); i += 8) {
        std::memcpy(&word, bytes.data() + i, 8);
        digest = digest_word(digest, word);
    }
    word = 0;
    if (i < bytes.size()) std::memcpy(&word, bytes.data() + i, bytes.size() - i);
    return digest_word(digest_word(digest, word), bytes.size());
}

}  // namespace keyhole
