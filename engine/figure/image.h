/// An RGB picture in memory: fills, lines, text, PNG. Values; any thread (fonts are loaded once and locked
/// inside). Knows no figure. Text is in DejaVu Sans as fontconfig finds it; characters that it lacks come
/// from another system font.
#pragma once

#include "engine/figure/colormap.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

enum class TextAlign { left, center, right };
enum class FontWeight { book, bold };

struct TextStyle {
    float size = 13;  ///< pixels from ascent to descent
    Rgb8 color{32, 32, 36};
    TextAlign align = TextAlign::left;
    FontWeight weight = FontWeight::book;
    bool upward = false;  ///< turned by a quarter: reads from bottom to top, x is its baseline
};

class Image {
  public:
    Image() = default;
    Image(int width, int height, Rgb8 background = {255, 255, 255});

    int width() const { return width_; }
    int height() const { return height_; }
    Rgb8 at(int x, int y) const;
    /// Pixels outside of the picture are ignored, here and below.
    void set(int x, int y, Rgb8 color);
    /// coverage 0..1
    void blend(int x, int y, Rgb8 color, float coverage);
    void fill(int x, int y, int width, int height, Rgb8 color);
    /// Draws the hatch of evicted cells, aligned to the picture's pixels. shift: x + y of this picture in a
    /// larger one, to which the hatch is aligned.
    void fill_hatch(int x, int y, int width, int height, Rgb8 background = kEvictedColor,
                    Rgb8 stripe = kHatchColor, int shift = 0);
    void outline(int x, int y, int width, int height, Rgb8 color);
    void line(float x0, float y0, float x1, float y1, Rgb8 color);
    /// Draws text; (x, y) is the start, middle or end of its baseline as `align` says.
    void text(float x, float y, std::string_view utf8, const TextStyle& style);
    void paste(const Image& other, int x, int y);

    const std::vector<std::uint8_t>& rgb() const { return rgb_; }

  private:
    int width_ = 0;
    int height_ = 0;
    std::vector<std::uint8_t> rgb_;  // [height, width, 3]
};

/// Returns the advance width in pixels.
float text_width(std::string_view utf8, const TextStyle& style);
/// Breaks text at blanks into lines of at most `width` pixels; '\n' breaks too.
std::vector<std::string> wrap_text(std::string_view utf8, float width, const TextStyle& style);
/// Returns the text, cut with an ellipsis when it is wider than `width`.
std::string fit_text(std::string_view utf8, float width, const TextStyle& style);

/// A text in a PNG file, such as "Title".
struct PngText {
    std::string_view key;
    std::string text;  ///< UTF-8; empty: it is left out
};
/// Returns a PNG file. Throws Error(no_memory) when the encoder fails.
std::vector<std::byte> encode_png(const Image& image, const std::vector<PngText>& texts = {});
/// Writes it. Throws Error(io) with path and reason.
void write_png(const Image& image, const std::filesystem::path& path, const std::vector<PngText>& texts = {});

}  // namespace keyhole
