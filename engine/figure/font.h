/// Glyph coverage for Image::text: fontconfig finds the fonts, stb_truetype rasterises them. Locked inside;
/// any thread. Knows no figure.
#pragma once

#include "engine/figure/image.h"

#include <compare>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

struct Glyph {
    int left = 0;  ///< offset of the bitmap from the pen, pixels
    int top = 0;   ///< downward from the baseline
    int width = 0;
    int height = 0;
    float advance = 0;
    std::vector<std::uint8_t> coverage;  ///< [height, width]
};

/// Returns a glyph; the reference stays valid until the process ends.
const Glyph& glyph(char32_t character, float size, FontWeight weight);

/// A font of the system. number: of the font in its file.
struct FontFile {
    std::string path;
    int number = 0;
    auto operator<=>(const FontFile&) const = default;
};
/// Returns the font that glyph() takes a character from.
FontFile font_of(char32_t character, FontWeight weight);
/// Returns the em of a font, in pixels, for text whose size from ascent to descent is `size`.
double em_of(const FontFile& font, double size);

/// Returns whether stb_truetype can read font `number` of the file. Dear ImGui uses it too and ends the
/// program on a font that it cannot read.
bool is_readable_font(const std::string& file, int number);

/// Returns the characters of a UTF-8 text; broken bytes become U+FFFD.
std::vector<char32_t> characters(std::string_view utf8);
void append_utf8(std::string& text, char32_t character);

}  // namespace keyhole
