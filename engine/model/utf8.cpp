#include "engine/model/utf8.h"

namespace keyhole {

std::size_t utf8_length(std::string_view text) {
    if (text.empty()) return 0;
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    const unsigned char lead = byte(0);
    if (lead < 0x80) return 1;
    if (lead < 0xc2 || lead > 0xf4) return 0;
    const std::size_t length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    if (text.size() < length) return 0;
    for (std::size_t i = 1; i < length; ++i) {
        if ((byte(i) & 0xc0) != 0x80) return 0;
    }
    // Overlong forms, surrogates, beyond U+10FFFF.
    if (lead == 0xe0 && byte(1) < 0xa0) return 0;
    if (lead == 0xed && byte(1) > 0x9f) return 0;
    if (lead == 0xf0 && byte(1) < 0x90) return 0;
    if (lead == 0xf4 && byte(1) > 0x8f) return 0;
    return length;
}

char32_t utf8_decode(std::string_view character) {
    const auto bits = [&](std::size_t i, unsigned mask) {
        return static_cast<char32_t>(static_cast<unsigned char>(character[i]) & mask);
    };
    switch (character.size()) {
        case 1:
            return bits(0, 0x7f);
        case 2:
            return bits(0, 0x1f) << 6 | bits(1, 0x3f);
        case 3:
            return bits(0, 0x0f) << 12 | bits(1, 0x3f) << 6 | bits(2, 0x3f);
        default:
            return bits(0, 0x07) << 18 | bits(1, 0x3f) << 12 | bits(2, 0x3f) << 6 | bits(3, 0x3f);
    }
}

}  // namespace keyhole
