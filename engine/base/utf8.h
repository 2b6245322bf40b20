/// UTF-8 as bytes of unknown quality: where characters begin, which bytes are none, and of which kind a character is. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace keyhole {

/// Length of the valid character at the front of `text` (1 to 4 bytes); 0 when the first byte starts none or
/// text is empty.
std::size_t utf8_length(std::string_view text);

/// Code point of a character that utf8_length found valid.
char32_t utf8_decode(std::string_view character);

/// Unicode's White_Space.
bool is_space(char32_t c);
/// A letter, mark, decimal number or connector: \w of regular expressions.
bool is_word(char32_t c);
bool is_mark(char32_t c);

/// The character at either end of a text; empty where none is valid there.
std::string_view first_character(std::string_view text);
std::string_view last_character(std::string_view text);
/// Bytes of white space at either end.
std::size_t space_at_front(std::string_view text);
std::size_t space_at_back(std::string_view text);

}  // namespace keyhole
