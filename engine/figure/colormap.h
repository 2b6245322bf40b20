/// Colours of values: the one mapping that figures, exporter and shaders share. Pure functions; any thread;
/// knows nothing of the rest.
///
/// From value to colour, in float, in this order (GLSL in brackets; uniforms are the fields of ScaleTerms):
///
///     a = diverging ? |v| : v
///     u = logarithmic ? log2(a) : a                       [a <= 0 in logarithmic: u = offset]
///     u = clamp((u - offset) * factor, 0, 1)
///     u = gamma == 1 ? u : pow(u, gamma)
///     u = diverging ? 0.5 + 0.5 * sign(v) * u : u
///     index = min(int(u * 256), 255)                       [texelFetch(table, ivec2(index, 0), 0)]
///
/// A linear scale gives the same index on every IEEE machine; log2 and pow of a GPU may differ by one entry
/// at an edge. Zero of a diverging scale falls on entries 127 and 128, which are equal.
///
/// Before the clamp: what is no finite number has a colour of its own (marks_nan), and so have values beyond the range (marks_clips), by
/// clip_of(): (u - offset) * factor above 1 + kClipSlack, below -kClipSlack, or a <= 0 in logarithmic; a diverging scale has no lower end.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace keyhole {

struct Rgb8 {
    std::uint8_t r = 0, g = 0, b = 0;
    bool operator==(const Rgb8&) const = default;
};

enum class Colormap {
    viridis,  ///< weights
    cividis,  ///< weights, for all kinds of colour sight
    rdbu,     ///< differences: blue negative, near-white zero, red positive
    gray,     ///< print: light small, black large
};

inline constexpr std::array kColormaps = {Colormap::viridis, Colormap::cividis, Colormap::rdbu,
                                          Colormap::gray};
const std::array<Rgb8, 256>& colormap_table(Colormap map);
std::string_view colormap_name(Colormap map);
std::optional<Colormap> colormap_from_name(std::string_view name);

/// How values become a place in the table.
struct ColorScale {
    Colormap map = Colormap::viridis;
    bool logarithmic = false;
    bool diverging = false;    ///< symmetric about zero: low and high are magnitudes (linear: low is 0)
    float low = 0;             ///< first entry; > 0 when logarithmic
    float high = 1;            ///< last entry; > low
    float gamma = 1;           ///< > 0; below 1 lifts small values
    bool marks_nan = true;     ///< NaN and infinities stand out; else they look like cells without a value
    bool marks_clips = false;  ///< values beyond the range stand out
    bool operator==(const ColorScale&) const = default;
};

/// The scale as the arithmetic above takes it.
struct ScaleTerms {
    float offset = 0;  ///< low, or log2(low)
    float factor = 1;  ///< 1 / (high - low), or 1 / (log2(high) - log2(low))
    float gamma = 1;
    bool logarithmic = false;
    bool diverging = false;
};

/// Values that make no scale (low >= high, low <= 0 when logarithmic) are moved to the nearest that does.
ScaleTerms scale_terms(const ColorScale& scale);

/// -1 below the range, 1 above it, 0 within. The ends belong to it, to within rounding.
inline constexpr float kClipSlack = 1e-4f;
int clip_of(const ScaleTerms& terms, float value);
/// 0..255 for any value but NaN; infinities end at the ends.
int color_index(const ScaleTerms& terms, float value);
Rgb8 color_of(const ColorScale& scale, float value);
/// The value at a place u in 0..1 of the table: for colour bars. Inverse of the mapping.
float value_at(const ColorScale& scale, float u);

/// Cells that carry no value. Pattern and colour both, so that neither alone must be seen.
inline constexpr Rgb8 kNanColor{255, 0, 255};
inline constexpr Rgb8 kAboveColor{255, 112, 0};  ///< no map has these three
inline constexpr Rgb8 kBelowColor{140, 216, 255};
inline constexpr Rgb8 kMissingColor{212, 212, 218};  ///< nothing is known of the cell
inline constexpr Rgb8 kFutureColor{255, 255, 255};   ///< right of the diagonal: the token does not exist yet
inline constexpr Rgb8 kEvictedColor{236, 236, 236};  ///< ground of the hatch
inline constexpr Rgb8 kHatchColor{176, 176, 176};    ///< its stripes
inline constexpr Rgb8 kKeptColor{38, 96, 140};       ///< mask: attended and kept
inline constexpr Rgb8 kLastSeenColor{238, 150,
                                     34};  ///< mask: attended for the last time, evicted after the row

/// Diagonal stripes over evicted cells, x and y in pixels of the picture: 2 of every 6, falling to the left.
constexpr bool on_hatch(int x, int y) {
    return (x + y) % 6 < 2;
}

/// A scale for attention probabilities that a sink does not swamp: logarithmic, from 1e-4 (or 1e-3 of the
/// largest value when that is lower) to the largest value rounded up to 1, 2, 5 x 10^n.
ColorScale attention_scale(float largest);

}  // namespace keyhole
