#include "engine/figure/curves.h"

#include "engine/figure/ticks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace keyhole {

namespace {

struct Style {
    const char* color;
    const char* dash;
};
constexpr std::array<Style, 8> kStyles = {{{"#0072b2", ""},
                                           {"#d55e00", "7 3"},
                                           {"#009e73", "2 3"},
                                           {"#cc79a7", "9 3 2 3"},
                                           {"#e69f00", ""},
                                           {"#56b4e9", "7 3"},
                                           {"#000000", "2 3"},
                                           {"#8a6d3b", "9 3 2 3"}}};
constexpr const char* kThresholdColor = "#8c8c94";

struct Range {
    double low = std::numeric_limits<double>::infinity(), high = -low;
    void add(double v) {
        low = std::min(low, v);
        high = std::max(high, v);
    }
};

bool drawable(double y, bool log_y) {
    return std::isfinite(y) && (!log_y || y > 0);
}

/// Data to pixels.
struct Axes {
    double left, top, width, height;
    Range x, y;
    bool log_y;

    double px(double v) const { return left + width * (v - x.low) / (x.high - x.low); }
    double py(double v) const {
        const double u = log_y ? (std::log(v) - std::log(y.low)) / (std::log(y.high) - std::log(y.low))
                               : (v - y.low) / (y.high - y.low);
        return top + height * (1 - u);
    }
};

Axes make_axes(const CurvePlot& plot, double left, double top, double right, double bottom) {
    Axes axes{left, top, plot.width - left - right, plot.height - top - bottom, {}, {}, plot.log_y};
    for (const Curve& curve : plot.curves)
        for (std::size_t i = 0; i < curve.x.size(); ++i)
            if (drawable(curve.y[i], plot.log_y)) {
                axes.x.add(curve.x[i]);
                axes.y.add(curve.y[i]);
            }
    if (!(axes.x.low <= axes.x.high)) axes.x = {0, 1};
    if (!(axes.y.low <= axes.y.high)) axes.y = plot.log_y ? Range{0.1, 1} : Range{0, 1};
    if (axes.x.low == axes.x.high) axes.x.high += 1;
    if (plot.log_y) {
        axes.y = {axes.y.low * 0.9, axes.y.high * 1.1};
    } else {
        // Zero is part of the picture unless the values are far from it.
        if (axes.y.low > 0 && axes.y.low < 0.6 * axes.y.high) axes.y.low = 0;
        const double pad = axes.y.high > axes.y.low ? 0.05 * (axes.y.high - axes.y.low)
                                                    : std::max(1e-3, 0.05 * std::abs(axes.y.high));
        axes.y.high += pad;
        if (axes.y.low != 0) axes.y.low -= pad;
    }
    return axes;
}

void text(std::string& out, double x, double y, const std::string& value, const char* attributes) {
    out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", x, y, attributes, escape_xml(value));
}

void draw_axes(std::string& out, const CurvePlot& plot, const Axes& axes) {
    const double bottom = axes.top + axes.height;
    for (double tick :
         plot.log_y ? log_ticks(axes.y.low, axes.y.high, 8) : linear_ticks(axes.y.low, axes.y.high, 8)) {
        const double y = axes.py(tick);
        out += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" class=\"grid\"/>\n",
                           axes.left, y, axes.left + axes.width, y);
        text(out, axes.left - 7, y + 4, tick_text(tick), "class=\"tick\" text-anchor=\"end\"");
    }
    for (double tick : linear_ticks(axes.x.low, axes.x.high, 11)) {
        if (tick != std::floor(tick)) continue;
        const double x = axes.px(tick);
        out += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" class=\"axis\"/>\n",
                           x, bottom, x, bottom + 5);
        text(out, x, bottom + 18, tick_text(tick), "class=\"tick\" text-anchor=\"middle\"");
    }
    out += fmt::format("<path d=\"M{0:.1f} {1:.1f}V{2:.1f}H{3:.1f}\" class=\"axis\"/>\n", axes.left, axes.top,
                       bottom, axes.left + axes.width);
    text(out, axes.left + axes.width / 2, bottom + 38, plot.x_label,
         "class=\"label\" text-anchor=\"middle\"");
    out += fmt::format(
        "<text transform=\"translate({:.1f} {:.1f}) rotate(-90)\" class=\"label\" "
        "text-anchor=\"middle\">{}</text>\n",
        22.0, axes.top + axes.height / 2, escape_xml(plot.y_label));
}

std::string stroke(const Curve& curve, std::size_t index) {
    if (curve.threshold)
        return fmt::format("stroke=\"{}\" stroke-width=\"4\" stroke-opacity=\"0.6\"", kThresholdColor);
    const Style& style = kStyles[index % kStyles.size()];
    std::string out = fmt::format("stroke=\"{}\" stroke-width=\"1.8\"", style.color);
    if (*style.dash) out += fmt::format(" stroke-dasharray=\"{}\"", style.dash);
    return out;
}

void draw_curve(std::string& out, const Curve& curve, const Axes& axes, const std::string& line) {
    std::string path;
    bool pen_down = false;
    double last_x = 0, last_y = 0;
    int run = 0;
    for (std::size_t i = 0; i < curve.x.size(); ++i) {
        if (!drawable(curve.y[i], axes.log_y)) {
            pen_down = false;
            continue;
        }
        last_x = axes.px(curve.x[i]);
        last_y = axes.py(curve.y[i]);
        path += fmt::format("{}{:.1f} {:.1f}", pen_down ? "L" : "M", last_x, last_y);
        run = pen_down ? run + 1 : 1;
        pen_down = true;
    }
    if (path.empty()) return;
    // A single point has no line: round caps make it a dot.
    if (run == 1) path += fmt::format("L{:.1f} {:.1f}", last_x, last_y);
    out += fmt::format(
        "<path d=\"{}\" fill=\"none\" stroke-linecap=\"round\" stroke-linejoin=\"round\" {}/>\n", path, line);
    if (std::isnan(curve.end_mark)) return;
    out += fmt::format(
        "<path d=\"M{0:.1f} {1:.1f}l8 8m0 -8l-8 8\" fill=\"none\" stroke=\"#202024\" stroke-width=\"2\"/>\n",
        last_x - 4, last_y - 4);
    if (!curve.end_text.empty()) {
        const bool left = last_x > axes.left + 0.85 * axes.width;
        text(out, last_x + (left ? -8 : 8), last_y - 6, curve.end_text,
             left ? "class=\"halo\" text-anchor=\"end\"" : "class=\"halo\"");
    }
}

/// Character count is enough to break a caption: the exact width is the reader's font.
std::vector<std::string> wrap(const std::string& text, std::size_t most) {
    std::vector<std::string> lines(1);
    std::size_t i = 0;
    while (i < text.size()) {
        const std::size_t end = std::min(text.find(' ', i), text.size());
        const std::string word = text.substr(i, end - i);
        if (!lines.back().empty() && lines.back().size() + 1 + word.size() > most) lines.emplace_back();
        lines.back() += (lines.back().empty() ? "" : " ") + word;
        i = end + 1;
    }
    return lines;
}

}  // namespace

std::string escape_xml(const std::string& text) {
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const auto c = static_cast<unsigned char>(text[i]);
        const int follow = c < 0x80                ? 0
                           : c >= 0xf0 && c < 0xf5 ? 3
                           : c >= 0xe0 && c < 0xf0 ? 2
                           : c >= 0xc2 && c < 0xe0 ? 1
                                                   : -1;
        bool good = follow >= 0 && i + static_cast<std::size_t>(follow) < text.size() && c >= 0x20;
        for (int k = 1; good && k <= follow; ++k)
            good = (static_cast<unsigned char>(text[i + static_cast<std::size_t>(k)]) & 0xc0) == 0x80;
        if (!good) {
            out += "\xef\xbf\xbd";
        } else if (c == '&') {
            out += "&amp;";
        } else if (c == '<') {
            out += "&lt;";
        } else if (c == '>') {
            out += "&gt;";
        } else if (c == '"') {
            out += "&quot;";
        } else {
            out += text.substr(i, static_cast<std::size_t>(follow) + 1);
            i += static_cast<std::size_t>(follow);
        }
    }
    return out;
}

std::string draw_curves(const CurvePlot& unclamped) {
    CurvePlot plot = unclamped;
    if (plot.log_y && plot.y_floor > 0)
        for (Curve& curve : plot.curves)
            for (double& y : curve.y) y = y < plot.y_floor ? plot.y_floor : y;  // NaN stays
    std::size_t longest = 0;
    for (const Curve& curve : plot.curves) longest = std::max(longest, curve.name.size());
    const double legend_width = std::min(260.0, 62 + 7.0 * static_cast<double>(longest));
    const std::vector<std::string> caption = wrap(plot.caption, static_cast<std::size_t>(plot.width / 7));
    const double caption_height = plot.caption.empty() ? 0 : 18.0 * static_cast<double>(caption.size());
    const double top = plot.subtitle.empty() ? 50 : 68;
    const Axes axes = make_axes(plot, 84, top, legend_width + 24, 60 + caption_height);

    std::string out = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
        "font-family=\"DejaVu Sans, Verdana, sans-serif\">\n"
        "<style>.tick{{font-size:12px;fill:#303036}}.label{{font-size:13px;fill:#202024}}.note{{font-size:"
        "12px;fill:#68686f}}"
        ".halo{{font-size:12px;fill:#202024;stroke:#ffffff;stroke-width:3px;paint-order:stroke}}"
        ".grid{{stroke:#e2e2e6}}.axis{{stroke:#8c8c94;fill:none}}</style>\n<rect width=\"{0}\" "
        "height=\"{1}\" fill=\"#ffffff\"/>\n",
        plot.width, plot.height);
    text(out, 18, 30, plot.title, "font-size=\"18\" font-weight=\"bold\" fill=\"#202024\"");
    if (!plot.subtitle.empty()) text(out, 18, 50, plot.subtitle, "font-size=\"13\" fill=\"#68686f\"");
    draw_axes(out, plot, axes);

    double legend_y = top + 8;
    std::size_t index = 0;
    for (const Curve& curve : plot.curves) {
        const std::string line = stroke(curve, index);
        if (!curve.threshold) ++index;
        draw_curve(out, curve, axes, line);
        const double x = axes.left + axes.width + 20;
        out += fmt::format("<path d=\"M{:.1f} {:.1f}h28\" fill=\"none\" {}/>\n", x, legend_y, line);
        text(out, x + 35, legend_y + 4, curve.name, "class=\"tick\"");
        legend_y += 20;
    }
    double y = plot.height - caption_height;
    if (!plot.caption.empty())
        for (const std::string& line : caption) {
            text(out, 18, y, line, "class=\"note\"");
            y += 18;
        }
    return out + "</svg>\n";
}

}  // namespace keyhole
