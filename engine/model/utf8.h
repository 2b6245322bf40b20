/// UTF-8 as bytes of unknown quality: where characters begin and which bytes are none. Any thread.
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

}  // namespace keyhole
