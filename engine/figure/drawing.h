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

struct FigureTexts {
    std::string title;     ///< what the figure shows
    std::string subtitle;  ///< its source: model, lane spec
    std::string caption;   ///< scale and units; the figure appends reductions
};

/// How a picture fits into a printed page, beside its width.
struct PrintForm {
    static constexpr int kLeastHeight = 120, kMostHeight = 12'000;
    static constexpr double kLeastFont = 3, kMostFont = 72;
    bool bare = false;  ///< without title, subtitle and caption; a file of text beside the picture has them
    int height = 0;     ///< in pixels; 0: what the content needs
    double font_size = 0;  ///< of the numbers on the axes, in points, others in proportion; 0: by the width
    /// Returns whether anything but the cells decides the size.
    bool is_sized() const { return height > 0 || font_size > 0; }
    /// Returns the scale at which text of `style` has the font size; `otherwise` if none is asked for.
    double scale(const TextStyle& style, double otherwise) const;
    /// Returns the texts that the picture itself shows.
    FigureTexts shown(const FigureTexts& texts) const { return bare ? FigureTexts{} : texts; }
    bool operator==(const PrintForm&) const = default;
};
/// Throws Error(wrong_use): a picture of this width needs a height of `least` pixels.
[[noreturn]] void refuse_height(int width, int height, int least);

struct Drawing {
    int width = 0, height = 0;  ///< of the picture in pixels; 96 of them make an inch of SVG and PDF
    double scale = 1;           ///< pixels per unit of the coordinates that draw() uses
    Background background = Background::light;
    FigureTexts texts;    ///< of the document, whether or not the picture shows them
    std::string made_by;  ///< what made it: program and command; empty: not known
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

/// The format of pictures in motion, see film.h.
enum class FilmFormat { gif, webm, mp4 };
inline constexpr std::array kFilmFormats = {FilmFormat::gif, FilmFormat::webm, FilmFormat::mp4};
/// Returns "gif", "webm" or "mp4".
std::string_view film_name(FilmFormat format);
/// Removes such formats from a list of formats and returns the last of them; GIF if there is none.
FilmFormat take_film(std::string& list);

/// Parses a list such as "svg,pdf"; throws as format_from_name(), and for an empty list.
std::vector<PictureFormat> formats_from_list(std::string_view list);

/// How pictures are written.
struct PictureChoice {
    static constexpr int kLeastWidth = 320, kMostWidth = 12'000;
    std::vector<PictureFormat> formats;         ///< empty: the usual one of the picture
    int width = 0;                              ///< in pixels, with text in proportion; 0: the usual one
    Background background = Background::light;  ///< light is for paper
    PrintForm print = {};
    FilmFormat film = FilmFormat::gif;  ///< of animations
    std::string made_by = {};           ///< is kept in the files, see Drawing
    bool operator==(const PictureChoice&) const = default;

    /// Returns the number of files of a picture.
    int n_files() const {
        return static_cast<int>(formats.empty() ? 1 : formats.size()) + (print.bare ? 1 : 0);
    }
};
/// Returns the bytes of a picture with this many cells in all its formats, about and at most.
std::int64_t estimate_picture_bytes(const PictureChoice& choice, std::int64_t n_cells);
/// Throws Error(wrong_use) for a width that is neither 0 nor in bounds.
void check_picture_width(int width);

/// Writes the picture in the format of the name's ending. Throws Error(wrong_use) for another ending,
/// Error(unsupported) as pdf(), Error(io).
void write_drawing(const Drawing& drawing, const std::filesystem::path& path);
/// Writes it in the chosen formats, else in the usual ones, as `path` with their endings; a bare one's texts
/// as `path`.txt. Returns the names of the files.
std::vector<std::string> write_drawing(Drawing drawing, const std::filesystem::path& path,
                                       const PictureChoice& how, const std::vector<PictureFormat>& usual);
/// Returns title, subtitle and caption as text, and what made the picture.
std::string text_beside(const Drawing& drawing);

/// Returns text escaped for XML: & < > " become entities; control characters and broken UTF-8 become
/// U+FFFD.
std::string escape_xml(std::string_view text);

}  // namespace keyhole
