/// The mapping from value to colour that figures, exporter and shaders share. Pure functions; any thread.
/// Knows nothing of the other folders.
///
/// The mapping computes in float, in this order (GLSL in brackets; uniforms are the fields of ScaleTerms):
///
///     a = diverging ? |v| : v
///     u = logarithmic ? log2(a) : a                       [a <= 0 in logarithmic: u = offset]
///     u = clamp((u - offset) * factor, 0, 1)
///     u = gamma == 1 ? u : pow(u, gamma)
///     u = diverging ? 0.5 + 0.5 * sign(v) * u : u
///     index = min(int(u * 256), 255)                       [texelFetch(table, ivec2(index, 0), 0)]
///
/// A linear scale gives the same index on every IEEE machine; log2 and pow of a GPU may differ by one entry
/// at an edge. Zero of a diverging scale maps to entries 127 and 128, which are equal.
///
/// Two checks come before the clamp. Values that are not finite have a separate colour (marks_nan). So have
/// values beyond the range (marks_clips), by clip_of(): (u - offset) * factor above 1 + kClipSlack or below
/// -kClipSlack, or a <= 0 in logarithmic; a diverging scale has no lower end.
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
    viridis,    ///< weights
    cividis,    ///< weights; readable with colour-vision deficiency
    rdbu,       ///< differences: blue negative, near-white zero, red positive
    rdbu_dark,  ///< the same for a dark background: grey zero, light ends
    gray,       ///< print: light small, black large
};

inline constexpr std::array kColormaps = {Colormap::viridis, Colormap::cividis, Colormap::rdbu,
                                          Colormap::rdbu_dark, Colormap::gray};

/// The background of a picture: light for paper and projectors, or dark as in the window.
enum class Background { light, dark };
/// Returns the map of differences for a background.
constexpr Colormap difference_map(Background background) {
    return background == Background::light ? Colormap::rdbu : Colormap::rdbu_dark;
}
const std::array<Rgb8, 256>& colormap_table(Colormap map);
std::string_view colormap_name(Colormap map);
std::optional<Colormap> colormap_from_name(std::string_view name);

/// How values map to entries of the table.
struct ColorScale {
    Colormap map = Colormap::viridis;
    bool logarithmic = false;
    bool diverging = false;    ///< symmetric about zero: low and high are magnitudes (linear: low is 0)
    float low = 0;             ///< first entry; > 0 when logarithmic
    float high = 1;            ///< last entry; > low
    float gamma = 1;           ///< > 0; below 1 lifts small values
    bool marks_nan = true;     ///< NaN and infinities get kNanColor, else kMissingColor
    bool marks_clips = false;  ///< values beyond the range get kAboveColor or kBelowColor
    bool operator==(const ColorScale&) const = default;
};

/// The terms of the arithmetic above.
struct ScaleTerms {
    float offset = 0;  ///< low, or log2(low)
    float factor = 1;  ///< 1 / (high - low), or 1 / (log2(high) - log2(low))
    float gamma = 1;
    bool logarithmic = false;
    bool diverging = false;
};

/// Returns the terms of a scale. Moves invalid values (low >= high, low <= 0 when logarithmic) to the
/// nearest valid ones.
ScaleTerms scale_terms(const ColorScale& scale);

/// Returns -1 below the range, 1 above it, 0 within. The ends are within, up to kClipSlack.
inline constexpr float kClipSlack = 1e-4f;
int clip_of(const ScaleTerms& terms, float value);
/// Returns 0..255 for any value but NaN; infinities map to the ends.
int color_index(const ScaleTerms& terms, float value);
Rgb8 color_of(const ColorScale& scale, float value);
/// Returns the value at place u in 0..1 of the table, for colour bars: the inverse of the mapping.
float value_at(const ColorScale& scale, float u);

/// Colours of cells without a value on the scale. Evicted cells have a pattern too, so that colour is not
/// the only sign.
inline constexpr Rgb8 kNanColor{255, 0, 255};
inline constexpr Rgb8 kAboveColor{255, 112, 0};  ///< no map has this colour, the one above or the one below
inline constexpr Rgb8 kBelowColor{140, 216, 255};
inline constexpr Rgb8 kMissingColor{212, 212, 218};  ///< no value is known for the cell
inline constexpr Rgb8 kFutureColor{255, 255, 255};   ///< right of the diagonal: token not there yet
inline constexpr Rgb8 kEvictedColor{236, 236, 236};  ///< background of the hatch
inline constexpr Rgb8 kHatchColor{176, 176, 176};    ///< stripes of the hatch
inline constexpr Rgb8 kKeptColor{38, 96, 140};       ///< mask: attended and kept
/// mask: attended for the last time, evicted after the row
inline constexpr Rgb8 kLastSeenColor{238, 150, 34};

/// The same colours by background. hidden: stored, but not attended by the row.
struct CellColors {
    Rgb8 future, missing, evicted, hatch, kept, last_seen, hidden;
};
constexpr CellColors cell_colors(Background background) {
    if (background == Background::light)
        return {kFutureColor, kMissingColor,  kEvictedColor,  kHatchColor,
                kKeptColor,   kLastSeenColor, {178, 140, 190}};
    return {{20, 22, 27},   {44, 47, 55},   {38, 41, 49},  {66, 70, 82},
            {64, 138, 190}, {238, 150, 34}, {126, 84, 140}};
}

/// Returns whether a pixel of the picture is on a stripe over evicted cells: 2 of every 6, diagonal,
/// falling to the left.
constexpr bool on_hatch(int x, int y) {
    return (x + y) % 6 < 2;
}

/// Returns a scale for attention probabilities on which a sink does not hide the other tokens: logarithmic,
/// from 1e-4 (or 1e-3 of the largest value when that is lower) to the largest value rounded up to 1, 2, 5 x
/// 10^n.
ColorScale attention_scale(float largest);

}  // namespace keyhole
