/// The part of a font that a picture needs, to be embedded in it. HarfBuzz makes it. Any thread. Knows no
/// figure.
#pragma once

#include "engine/figure/font.h"

#include <cstddef>
#include <set>
#include <vector>

namespace keyhole {

/// Returns a font file with the glyphs of these characters and no others, without ligatures and kerning: text
/// is then as wide as text_width() says. Empty where the program was built without HarfBuzz, or if the font
/// cannot be cut.
std::vector<std::byte> font_subset(const FontFile& font, const std::set<char32_t>& characters);

}  // namespace keyhole
