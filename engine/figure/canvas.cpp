#include "engine/figure/canvas.h"

#include <algorithm>
#include <cmath>

namespace keyhole {

void CellPainter::fill(int x, int y, int width, int height, const CellFill& fill) {
    if (fill.hatched)
        image_.fill_hatch(left_ + x, top_ + y, width, height, colors_.evicted, colors_.hatch, shift_);
    else
        image_.fill(left_ + x, top_ + y, width, height, fill.color);
}

void Canvas::outline(double x, double y, double width, double height, Rgb8 color) {
    fill(x, y, width, 1, color);
    fill(x, y + height - 1, width, 1, color);
    fill(x, y, 1, height, color);
    fill(x + width - 1, y, 1, height, color);
}

void Canvas::swatch(int x, int y, int width, int height, const CellFill& fill) {
    cells(x, y, width, height, [&](CellPainter& painter) { painter.fill(0, 0, width, height, fill); });
}

void ImageCanvas::path(const std::vector<Run>& runs, const Stroke& unscaled) {
    Stroke stroke = unscaled;
    stroke.width *= scale_;
    for (double& length : stroke.dash) length *= scale_;
    for (const Run& run : runs) {
        std::size_t part = 0;  // index in the dash pattern; even: drawn
        double left = stroke.dash.empty() ? 0 : stroke.dash[0];
        for (std::size_t i = 1; i < run.size(); ++i) {
            double x = scale_ * run[i - 1].first, y = scale_ * run[i - 1].second;
            const double end_x = scale_ * run[i].first, end_y = scale_ * run[i].second;
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
    for (int y = static_cast<int>(std::floor(std::min(y0, y1) - reach)); y <= std::max(y0, y1) + reach; ++y) {
        // Only the pixels near the segment: the rectangle around a long diagonal is large.
        double from = std::min(x0, x1), to = std::max(x0, x1);
        if (std::abs(dy) > 1) {
            const double u0 = std::clamp((y - reach - 1 - y0) / dy, 0.0, 1.0),
                         u1 = std::clamp((y + reach + 1 - y0) / dy, 0.0, 1.0);
            from = x0 + std::min(u0 * dx, u1 * dx);
            to = x0 + std::max(u0 * dx, u1 * dx);
        }
        for (int x = static_cast<int>(std::floor(from - reach)); x <= to + reach; ++x) {
            const double u =
                squared > 0 ? std::clamp(((x - x0) * dx + (y - y0) * dy) / squared, 0.0, 1.0) : 0.0;
            const double coverage =
                std::clamp(radius + 0.5 - std::hypot(x - x0 - u * dx, y - y0 - u * dy), 0.0, 1.0);
            if (coverage > 0) image_.blend(x, y, stroke.color, static_cast<float>(coverage * stroke.opacity));
        }
    }
}

void ImageCanvas::fill(double x, double y, double width, double height, Rgb8 color) {
    const auto edge = [&](double at) { return static_cast<int>(std::lround(at * scale_)); };
    // A thin line must not vanish where the scale is small.
    image_.fill(edge(x), edge(y), std::max(edge(x + width) - edge(x), 1),
                std::max(edge(y + height) - edge(y), 1), color);
}

void ImageCanvas::text(double x, double y, const std::string& utf8, const TextStyle& style) {
    TextStyle scaled = style;
    scaled.size = static_cast<float>(style.size * scale_);
    image_.text(static_cast<float>(x * scale_), static_cast<float>(y * scale_), utf8, scaled);
}

void ImageCanvas::cells(int x, int y, int, int, const std::function<void(CellPainter&)>& paint) {
    CellPainter painter(image_, x, y, 0, colors().cells);
    paint(painter);
}

}  // namespace keyhole
