/// A figure that is laid out and can be written as PNG, SVG or PDF. All three show the same words at the same
/// places. Values; any thread. Knows no data.
#pragma once

#include "engine/figure/canvas.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

struct Drawing {
    int width = 0, height = 0;  ///< of the picture in pixels; 96 of them make an inch of SVG and PDF
    double scale = 1;           ///< pixels per unit of the coordinates that draw() uses
    Background background = Background::light;
    std::string title;  ///< of the document
    std::function<void(Canvas&)> draw = {};

    Image image() const;
    std::string svg() const;
    /// Throws Error(unsupported) if the program was built without cairo.
    std::vector<std::byte> pdf() const;
};

/// Returns whether the program was built with cairo, and so can write PDF.
bool has_pdf();

enum class PictureFormat { png, svg, pdf };
inline constexpr std::array kPictureFormats = {PictureFormat::png, PictureFormat::svg, PictureFormat::pdf};
/// Returns "png", "svg" or "pdf".
std::string_view format_name(PictureFormat format);
/// Throws Error(wrong_use) for another name.
PictureFormat format_from_name(std::string_view name);
/// Returns the format that the name's ending asks for.
std::optional<PictureFormat> format_of(const std::filesystem::path& path);

/// Parses a list such as "svg,pdf"; throws as format_from_name(), and for an empty list.
std::vector<PictureFormat> formats_from_list(std::string_view list);

/// How pictures are written.
struct PictureChoice {
    static constexpr int kLeastWidth = 320, kMostWidth = 12'000;
    std::vector<PictureFormat> formats;         ///< empty: the usual one of the picture
    int width = 0;                              ///< in pixels, with text in proportion; 0: the usual one
    Background background = Background::light;  ///< light is for paper
    bool operator==(const PictureChoice&) const = default;
};
/// Returns the bytes of a picture with this many cells in all its formats, about and at most.
std::int64_t estimate_picture_bytes(const PictureChoice& choice, std::int64_t n_cells);
/// Throws Error(wrong_use) for a width that is neither 0 nor in bounds.
void check_picture_width(int width);

/// Writes the picture in the format of the name's ending. Throws Error(wrong_use) for another ending,
/// Error(unsupported) as pdf(), Error(io).
void write_drawing(const Drawing& drawing, const std::filesystem::path& path);
/// Writes it in these formats, as `path` with their endings, and returns the names of the files.
std::vector<std::string> write_drawing(const Drawing& drawing, const std::filesystem::path& path,
                                       std::vector<PictureFormat> formats);

/// Returns text escaped for XML: & < > " become entities; control characters and broken UTF-8 become
/// U+FFFD.
std::string escape_xml(std::string_view text);

}  // namespace keyhole
