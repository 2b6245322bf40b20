/// GPT-2's byte alphabet: one printable character for each byte, so that byte-level vocabularies are text.
/// Pure function; any thread. Knows UTF-8 only.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace keyhole {

/// Returns the bytes that a vocabulary entry stands for, or nullopt when a character is not in the
/// alphabet.
std::optional<std::string> bytes_from_alphabet(std::string_view text);

/// Returns the characters that stand for some bytes.
std::string alphabet_of_bytes(std::string_view bytes);

}  // namespace keyhole
