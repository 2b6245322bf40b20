#include "engine/figure/canvas.h"

#include "engine/figure/curves.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

namespace keyhole {

namespace {

std::string hex(Rgb8 c) {
    return fmt::format("#{:02x}{:02x}{:02x}", c.r, c.g, c.b);
}

const char* svg_attributes(TextRole role) {
    switch (role) {
        case TextRole::title:
            return "font-size=\"18\" font-weight=\"bold\" fill=\"#202024\"";
        case TextRole::subtitle:
            return "font-size=\"13\" fill=\"#68686f\"";
        case TextRole::tick:
            return "class=\"tick\"";
        case TextRole::label:
            return "class=\"label\"";
        case TextRole::note:
            return "class=\"note\"";
        case TextRole::halo:
            return "class=\"halo\"";
    }
    return "";
}

}  // namespace

SvgCanvas::SvgCanvas(int width, int height)
    : out_(fmt::format(
          "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
          "font-family=\"DejaVu Sans, Verdana, sans-serif\">\n"
          "<style>.tick{{font-size:12px;fill:#303036}}.label{{font-size:13px;fill:#202024}}"
          ".note{{font-size:12px;fill:#68686f}}"
          ".halo{{font-size:12px;fill:#202024;stroke:#ffffff;stroke-width:3px;paint-order:stroke}}</style>\n"
          "<rect width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n",
          width, height)) {}

void SvgCanvas::path(const std::vector<Run>& runs, const Stroke& stroke) {
    out_ += "<path d=\"";
    for (const Run& run : runs)
        for (std::size_t i = 0; i < run.size(); ++i)
            out_ += fmt::format("{}{:.1f} {:.1f}", i == 0 ? "M" : "L", run[i].first, run[i].second);
    out_ += "\" fill=\"none\"";
    if (stroke.round) out_ += " stroke-linecap=\"round\" stroke-linejoin=\"round\"";
    out_ += fmt::format(" stroke=\"{}\" stroke-width=\"{}\"", hex(stroke.color), stroke.width);
    if (stroke.opacity < 1) out_ += fmt::format(" stroke-opacity=\"{}\"", stroke.opacity);
    if (!stroke.dash.empty()) out_ += fmt::format(" stroke-dasharray=\"{}\"", fmt::join(stroke.dash, " "));
    out_ += "/>\n";
}

void SvgCanvas::text(double x, double y, const std::string& value, TextRole role, TextAlign align,
                     bool upward) {
    const char* anchor = align == TextAlign::center  ? " text-anchor=\"middle\""
                         : align == TextAlign::right ? " text-anchor=\"end\""
                                                     : "";
    const std::string place = upward ? fmt::format("transform=\"translate({:.1f} {:.1f}) rotate(-90)\"", x, y)
                                     : fmt::format("x=\"{:.1f}\" y=\"{:.1f}\"", x, y);
    out_ += fmt::format("<text {} {}{}>{}</text>\n", place, svg_attributes(role), anchor, escape_xml(value));
}

void ImageCanvas::path(const std::vector<Run>& runs, const Stroke& stroke) {
    for (const Run& run : runs) {
        std::size_t part = 0;  // index in the dash pattern; even: drawn
        double left = stroke.dash.empty() ? 0 : stroke.dash[0];
        for (std::size_t i = 1; i < run.size(); ++i) {
            auto [x, y] = run[i - 1];
            const auto [end_x, end_y] = run[i];
            double length = std::hypot(end_x - x, end_y - y);
            if (stroke.dash.empty() || length == 0) {
                segment(x, y, end_x, end_y, stroke);
                continue;
            }
            const double dx = (end_x - x) / length, dy = (end_y - y) / length;
            while (length > 0) {
                const double piece = std::min(left, length);
                if (part % 2 == 0) segment(x, y, x + piece * dx, y + piece * dy, stroke);
                x += piece * dx;
                y += piece * dy;
                length -= piece;
                left -= piece;
                if (left <= 0) left = stroke.dash[++part % stroke.dash.size()];
            }
        }
    }
}

/// Shades every pixel by its distance to the segment, with an edge of one pixel.
void ImageCanvas::segment(double x0, double y0, double x1, double y1, const Stroke& stroke) {
    const double radius = stroke.width / 2, reach = radius + 1;
    const double dx = x1 - x0, dy = y1 - y0, squared = dx * dx + dy * dy;
    for (int y = static_cast<int>(std::floor(std::min(y0, y1) - reach)); y <= std::max(y0, y1) + reach; ++y)
        for (int x = static_cast<int>(std::floor(std::min(x0, x1) - reach)); x <= std::max(x0, x1) + reach;
             ++x) {
            const double u =
                squared > 0 ? std::clamp(((x - x0) * dx + (y - y0) * dy) / squared, 0.0, 1.0) : 0.0;
            const double coverage =
                std::clamp(radius + 0.5 - std::hypot(x - x0 - u * dx, y - y0 - u * dy), 0.0, 1.0);
            if (coverage > 0) image_.blend(x, y, stroke.color, static_cast<float>(coverage * stroke.opacity));
        }
}

void ImageCanvas::text(double x, double y, const std::string& value, TextRole role, TextAlign align,
                       bool upward) {
    TextStyle style;
    style.align = align;
    style.upward = upward;
    // SVG sizes are in em; TextStyle sizes run from ascent to descent, which is 1.16 em in DejaVu Sans.
    style.size = 1.16f * (role == TextRole::title                                 ? 18.0f
                          : role == TextRole::subtitle || role == TextRole::label ? 13.0f
                                                                                  : 12.0f);
    if (role == TextRole::title) style.weight = FontWeight::bold;
    if (role == TextRole::subtitle || role == TextRole::note) style.color = {104, 104, 111};
    image_.text(static_cast<float>(x), static_cast<float>(y), value, style);
}

}  // namespace keyhole
