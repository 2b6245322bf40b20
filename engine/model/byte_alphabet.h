/// GPT-2's alphabet: every byte as one printable character, so that byte-level vocabularies are texts. Any
/// thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace keyhole {

/// The bytes that a vocabulary entry stands for; nothing when a character is none of the 256.
std::optional<std::string> bytes_from_alphabet(std::string_view text);

}  // namespace keyhole
