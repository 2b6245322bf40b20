/// Glyph coverage for Image::text: fonts by fontconfig, rasterised by stb_truetype. Locked inside; any
/// thread.
#pragma once

#include "engine/figure/image.h"

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

struct Glyph {
    int left = 0;  ///< bitmap's offset from the pen, pixels
    int top = 0;   ///< downward from the baseline
    int width = 0;
    int height = 0;
    float advance = 0;
    std::vector<std::uint8_t> coverage;  ///< [height, width]
};

/// Calls of glyph() return a pointer that lives as long as the process.
const Glyph& glyph(char32_t character, float size, FontWeight weight);

/// stb_truetype reads that font of the file; Dear ImGui, which uses it too, ends the program at one that it does not read.
bool is_readable_font(const std::string& file, int number);

/// Characters of a UTF-8 text; broken bytes become U+FFFD.
std::vector<char32_t> characters(std::string_view utf8);

}  // namespace keyhole
