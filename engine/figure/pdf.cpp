// Pictures as PDF by cairo: text can be selected, the needed part of its fonts is embedded, and cells are one
// picture without loss.
#include "engine/figure/drawing.h"

#include "engine/base/error.h"

#if KH_HAVE_PDF

#include "engine/base/index.h"
#include "engine/figure/font.h"

#include <cairo-ft.h>
#include <cairo-pdf.h>

#include <cmath>
#include <map>
#include <memory>
#include <numbers>

namespace keyhole {

namespace {

template <class T, void (*destroy)(T*)>
struct CairoDestroy {
    void operator()(T* object) const { destroy(object); }
};
using FontFace = std::unique_ptr<cairo_font_face_t, CairoDestroy<cairo_font_face_t, cairo_font_face_destroy>>;
using Surface = std::unique_ptr<cairo_surface_t, CairoDestroy<cairo_surface_t, cairo_surface_destroy>>;
using Context = std::unique_ptr<cairo_t, CairoDestroy<cairo_t, cairo_destroy>>;

constexpr double kPointsPerPixel = 0.75;

[[noreturn]] void refuse(cairo_status_t status) {
    fail(ErrorCode::io, "cannot make the PDF: {}", cairo_status_to_string(status));
}

class PdfCanvas final : public Canvas {
  public:
    PdfCanvas(cairo_t* context, Background background) : Canvas(background), context_(context) {}

    void path(const std::vector<Run>& runs, const Stroke& stroke) override {
        for (const Run& run : runs)
            for (std::size_t i = 0; i < run.size(); ++i)
                (i == 0 ? cairo_move_to : cairo_line_to)(context_, run[i].first, run[i].second);
        cairo_set_line_width(context_, stroke.width);
        cairo_set_line_cap(context_, stroke.round ? CAIRO_LINE_CAP_ROUND : CAIRO_LINE_CAP_BUTT);
        cairo_set_line_join(context_, stroke.round ? CAIRO_LINE_JOIN_ROUND : CAIRO_LINE_JOIN_MITER);
        cairo_set_dash(context_, stroke.dash.data(), static_cast<int>(stroke.dash.size()), 0);
        ink(stroke.color, stroke.opacity);
        cairo_stroke(context_);
    }

    void fill(double x, double y, double width, double height, Rgb8 color) override {
        ink(color);
        cairo_rectangle(context_, x, y, width, height);
        cairo_fill(context_);
    }

    void text(double x, double y, const std::string& utf8, const TextStyle& style) override {
        double pen = 0;
        if (style.align != TextAlign::left)
            pen =
                -static_cast<double>(text_width(utf8, style)) * (style.align == TextAlign::center ? 0.5 : 1);
        cairo_save(context_);
        cairo_translate(context_, x, y);
        if (style.upward) cairo_rotate(context_, -std::numbers::pi / 2);
        ink(style.color);
        // A piece for each change of font: cairo takes all characters of a piece from one.
        std::string piece;
        FontFile font;
        const auto flush = [&] {
            if (!piece.empty()) pen += show(piece, font, static_cast<double>(style.size), pen);
            piece.clear();
        };
        for (const char32_t c : characters(utf8)) {
            const FontFile next = font_of(c, style.weight);
            if (next != font) flush();
            font = next;
            append_utf8(piece, c);
        }
        flush();
        cairo_restore(context_);
    }

    void cells(int x, int y, int width, int height, const std::function<void(CellPainter&)>& paint) override {
        Image image(width, height, colors().paper);
        CellPainter painter(image, 0, 0, x + y, colors().cells);
        paint(painter);
        const Surface surface(cairo_image_surface_create(CAIRO_FORMAT_RGB24, width, height));
        if (const auto status = cairo_surface_status(surface.get()); status != CAIRO_STATUS_SUCCESS)
            refuse(status);
        cairo_surface_flush(surface.get());
        unsigned char* rows = cairo_image_surface_get_data(surface.get());
        const int stride = cairo_image_surface_get_stride(surface.get());
        for (int v = 0; v < height; ++v) {
            auto* row = reinterpret_cast<std::uint32_t*>(rows + std::ptrdiff_t{v} * stride);
            for (int u = 0; u < width; ++u) {
                const Rgb8 c = image.at(u, v);
                row[u] = std::uint32_t{c.r} << 16 | std::uint32_t{c.g} << 8 | c.b;
            }
        }
        cairo_surface_mark_dirty(surface.get());
        cairo_set_source_surface(context_, surface.get(), x, y);
        cairo_pattern_set_filter(cairo_get_source(context_), CAIRO_FILTER_NEAREST);
        cairo_rectangle(context_, x, y, width, height);
        cairo_fill(context_);
    }

  private:
    void ink(Rgb8 color, double opacity = 1) {
        if (opacity < 1)
            cairo_set_source_rgba(context_, color.r / 255.0, color.g / 255.0, color.b / 255.0, opacity);
        else
            cairo_set_source_rgb(context_, color.r / 255.0, color.g / 255.0, color.b / 255.0);
    }

    cairo_font_face_t* face(const FontFile& font) {
        FontFace& known = faces_[font];
        if (known == nullptr) {
            FcPattern* pattern = FcPatternCreate();
            FcPatternAddString(pattern, FC_FILE, reinterpret_cast<const FcChar8*>(font.path.c_str()));
            FcPatternAddInteger(pattern, FC_INDEX, font.number);
            known.reset(cairo_ft_font_face_create_for_pattern(pattern));
            FcPatternDestroy(pattern);
        }
        return known.get();
    }

    /// Shows text of one font from `pen` on; returns its advance.
    double show(const std::string& utf8, const FontFile& font, double size, double pen) {
        cairo_set_font_face(context_, face(font));
        cairo_set_font_size(context_, em_of(font, size));
        cairo_scaled_font_t* scaled = cairo_get_scaled_font(context_);
        cairo_glyph_t* glyphs = nullptr;
        cairo_text_cluster_t* clusters = nullptr;
        int n_glyphs = 0, n_clusters = 0;
        cairo_text_cluster_flags_t flags{};
        const cairo_status_t status =
            cairo_scaled_font_text_to_glyphs(scaled, pen, 0, utf8.data(), static_cast<int>(utf8.size()),
                                             &glyphs, &n_glyphs, &clusters, &n_clusters, &flags);
        if (status != CAIRO_STATUS_SUCCESS) refuse(status);
        cairo_text_extents_t extents{};
        cairo_scaled_font_glyph_extents(scaled, glyphs, n_glyphs, &extents);
        cairo_show_text_glyphs(context_, utf8.data(), static_cast<int>(utf8.size()), glyphs, n_glyphs,
                               clusters, n_clusters, flags);
        cairo_glyph_free(glyphs);
        cairo_text_cluster_free(clusters);
        return extents.x_advance;
    }

    cairo_t* context_;
    std::map<FontFile, FontFace> faces_;
};

}  // namespace

bool has_pdf() {
    return true;
}

std::vector<std::byte> Drawing::pdf() const {
    std::vector<std::byte> bytes;
    const auto append = [](void* to, const unsigned char* data, unsigned length) {
        auto& out = *static_cast<std::vector<std::byte>*>(to);
        const auto* first = reinterpret_cast<const std::byte*>(data);
        out.insert(out.end(), first, first + length);
        return CAIRO_STATUS_SUCCESS;
    };
    const Surface surface(cairo_pdf_surface_create_for_stream(append, &bytes, width * kPointsPerPixel,
                                                              height * kPointsPerPixel));
    cairo_pdf_surface_restrict_to_version(surface.get(), CAIRO_PDF_VERSION_1_5);
    for (const auto& [key, text] : {std::pair(CAIRO_PDF_METADATA_TITLE, texts.title),
                                    {CAIRO_PDF_METADATA_SUBJECT, texts.caption},
                                    {CAIRO_PDF_METADATA_KEYWORDS, made_by}}) {
        std::string valid;
        for (const char32_t c : characters(text)) append_utf8(valid, c);
        if (!valid.empty()) cairo_pdf_surface_set_metadata(surface.get(), key, valid.c_str());
    }
    cairo_pdf_surface_set_metadata(surface.get(), CAIRO_PDF_METADATA_CREATOR, "Keyhole");
    // Without a time of its own, so that equal runs write equal files.
    cairo_pdf_surface_set_metadata(surface.get(), CAIRO_PDF_METADATA_CREATE_DATE, "");
    {
        const Context context(cairo_create(surface.get()));
        cairo_scale(context.get(), kPointsPerPixel * scale, kPointsPerPixel * scale);
        cairo_font_options_t* options = cairo_font_options_create();
        cairo_font_options_set_hint_style(options, CAIRO_HINT_STYLE_NONE);
        cairo_font_options_set_hint_metrics(options, CAIRO_HINT_METRICS_OFF);
        cairo_set_font_options(context.get(), options);
        cairo_font_options_destroy(options);
        PdfCanvas canvas(context.get(), background);
        canvas.fill(0, 0, width / scale, height / scale, canvas.colors().paper);
        draw(canvas);
        cairo_show_page(context.get());
        if (const auto status = cairo_status(context.get()); status != CAIRO_STATUS_SUCCESS) refuse(status);
    }
    cairo_surface_finish(surface.get());
    if (const auto status = cairo_surface_status(surface.get()); status != CAIRO_STATUS_SUCCESS)
        refuse(status);
    return bytes;
}

}  // namespace keyhole

#else

namespace keyhole {

bool has_pdf() {
    return false;
}

std::vector<std::byte> Drawing::pdf() const {
    fail(ErrorCode::unsupported,
         "this program was built without PDF; save as .svg or .png, or build with libcairo2-dev and "
         "libharfbuzz-dev installed");
}

}  // namespace keyhole

#endif
