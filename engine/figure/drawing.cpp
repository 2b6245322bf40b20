#include "engine/figure/drawing.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/json_text.h"
#include "engine/base/mapped_file.h"
#include "engine/figure/font.h"
#include "engine/figure/no_room.h"

#include <algorithm>

namespace keyhole {

double PrintForm::scale(const TextStyle& style, double otherwise) const {
    if (font_size <= 0) return otherwise;
    constexpr double kPixelsPerPoint = 96.0 / 72.0;
    const double em = em_of(font_of(U'0', FontWeight::book), static_cast<double>(style.size));
    return font_size * kPixelsPerPoint / em;
}

void refuse_height(int width, int height, int least) {
    throw NoRoom(fmt::format(
        "a picture of {} x {} pixels has no room for what it shows; it needs --height {} or more, or less "
        "text: --bare, a smaller --font-size",
        width, height, least));
}

Image Drawing::image() const {
    ImageCanvas canvas(width, height, background, scale);
    draw(canvas);
    return canvas.take();
}

std::string_view format_name(PictureFormat format) {
    static constexpr std::array<std::string_view, 3> kNames = {"png", "svg", "pdf"};
    return kNames[to_index(format)];
}

PictureFormat format_from_name(std::string_view name) {
    for (const PictureFormat format : kPictureFormats)
        if (format_name(format) == name) return format;
    fail(ErrorCode::wrong_use,
         "'{}' is no format of pictures; they are png, svg and pdf, and gif, webm and mp4 of "
         "animations",
         shown_text(name));
}

std::optional<PictureFormat> format_of(const std::filesystem::path& path) {
    const std::string ending = path.extension().string();
    for (const PictureFormat format : kPictureFormats)
        if (ending.size() > 1 && format_name(format) == ending.substr(1)) return format;
    return std::nullopt;
}

FilmFormat take_film(std::string& list) {
    FilmFormat film = FilmFormat::gif;
    std::string rest;
    std::string_view left = list;
    while (!left.empty()) {
        const std::size_t comma = std::min(left.find(','), left.size());
        const std::string_view word = left.substr(0, comma);
        left.remove_prefix(std::min(comma + 1, left.size()));
        const auto* const found = std::ranges::find(kFilmFormats, word, film_name);
        if (found != kFilmFormats.end())
            film = *found;
        else
            rest += (rest.empty() ? "" : ",") + std::string(word);
    }
    list = rest;
    return film;
}

std::vector<PictureFormat> formats_from_list(std::string_view list) {
    std::vector<PictureFormat> formats;
    while (true) {
        const std::size_t comma = std::min(list.find(','), list.size());
        formats.push_back(format_from_name(list.substr(0, comma)));
        if (comma == list.size()) return formats;
        list.remove_prefix(comma + 1);
    }
}

std::int64_t estimate_picture_bytes(const PictureChoice& choice, std::int64_t n_cells) {
    const std::int64_t n_pixels = std::int64_t{choice.width} * choice.width;
    const std::int64_t of_cells = std::min(n_cells, 1'500'000 + n_pixels) / 2 + n_pixels / 50;
    std::int64_t sum = 0;
    for (const PictureFormat format :
         choice.formats.empty() ? std::vector{PictureFormat::png} : choice.formats)
        sum += of_cells + (format == PictureFormat::png ? 40'000 : 200'000);  // the words' fonts
    return sum;
}

void check_picture_width(int width) {
    if (width != 0 && (width < PictureChoice::kLeastWidth || width > PictureChoice::kMostWidth))
        fail(ErrorCode::wrong_use, "a picture is {} to {} pixels wide, not {}", PictureChoice::kLeastWidth,
             PictureChoice::kMostWidth, width);
}

std::vector<std::string> write_drawing(Drawing drawing, const std::filesystem::path& path,
                                       const PictureChoice& how, const std::vector<PictureFormat>& usual) {
    drawing.made_by = how.made_by;
    std::vector<std::string> names;
    const auto file_of = [&](std::string_view ending) {
        std::filesystem::path file = path;
        file += fmt::format(".{}", ending);
        names.push_back(file.filename().string());
        return file;
    };
    for (const PictureFormat format : how.formats.empty() ? usual : how.formats)
        write_drawing(drawing, file_of(format_name(format)));
    if (how.print.bare) write_text_file(file_of("caption.txt"), text_beside(drawing));
    return names;
}

std::string text_beside(const Drawing& drawing) {
    std::string text;
    for (const std::string& part :
         {drawing.texts.title, drawing.texts.subtitle, drawing.texts.caption, drawing.made_by})
        if (!part.empty()) text += (text.empty() ? "" : "\n") + part + "\n";
    return text;
}

void write_drawing(const Drawing& drawing, const std::filesystem::path& path) {
    const std::optional<PictureFormat> format = format_of(path);
    if (!format)
        fail(ErrorCode::wrong_use, "cannot save {}: the name of a picture ends in .png, .svg or .pdf",
             path.string());
    switch (*format) {
        case PictureFormat::png:
            return write_file(path, encode_png(drawing.image(), {{"Title", drawing.texts.title},
                                                                 {"Description", drawing.texts.caption},
                                                                 {"Source", drawing.made_by}}));
        case PictureFormat::svg:
            return write_text_file(path, drawing.svg());
        case PictureFormat::pdf:
            return write_file(path, drawing.pdf());
    }
}

}  // namespace keyhole
