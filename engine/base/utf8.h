/// UTF-8 in untrusted bytes: where characters begin, which bytes are invalid, and the class of a character.
/// Any thread. Knows nothing of the other folders.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace keyhole {

/// Returns the length of the valid character at the front of `text` (1 to 4 bytes), or 0 when the text is
/// empty or does not begin with one.
std::size_t utf8_length(std::string_view text);

/// Returns the code point of a character that utf8_length() found valid.
char32_t utf8_decode(std::string_view character);

/// Returns the place of the first byte that belongs to no valid character; npos: all are valid.
std::size_t find_invalid_utf8(std::string_view text);

/// Returns "UTF-16LE", "UTF-16BE", "UTF-32LE" or "UTF-32BE" for bytes that are such a text: they begin with
/// its byte-order mark, or every second byte of most characters is NUL. Else empty.
std::string_view wide_encoding(std::string_view bytes);
/// Returns what to say of a file in such an encoding, where Keyhole reads UTF-8: what it is, and the command
/// that converts it. Empty: it is in none.
std::string wide_encoding_fault(std::string_view bytes);

/// Unicode's White_Space property.
bool is_space(char32_t c);
/// A letter, mark, decimal number or connector: \w in regular expressions.
bool is_word(char32_t c);
bool is_mark(char32_t c);

/// Return the first or last character of a text, or an empty view when the bytes there are not valid UTF-8.
std::string_view first_character(std::string_view text);
std::string_view last_character(std::string_view text);
/// Return the number of bytes of white space at that end.
std::size_t space_at_front(std::string_view text);
std::size_t space_at_back(std::string_view text);

}  // namespace keyhole
