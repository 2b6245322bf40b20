#include "engine/figure/curves.h"

#include "engine/base/index.h"
#include "engine/base/utf8.h"
#include "engine/figure/canvas.h"
#include "engine/figure/ticks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace keyhole {

namespace {

struct Style {
    Rgb8 color;
    std::vector<double> dash;
};
/// Okabe and Ito's colours.
const std::array<Style, 8>& styles() {
    static const std::array<Style, 8> known = {{{{0x00, 0x72, 0xb2}, {}},
                                                {{0xd5, 0x5e, 0x00}, {7, 3}},
                                                {{0x00, 0x9e, 0x73}, {2, 3}},
                                                {{0xcc, 0x79, 0xa7}, {9, 3, 2, 3}},
                                                {{0xe6, 0x9f, 0x00}, {}},
                                                {{0x56, 0xb4, 0xe9}, {7, 3}},
                                                {{0x00, 0x00, 0x00}, {2, 3}},
                                                {{0x8a, 0x6d, 0x3b}, {9, 3, 2, 3}}}};
    return known;
}
constexpr Rgb8 kGrey{0x8c, 0x8c, 0x94}, kInk{0x20, 0x20, 0x24};
const Stroke kGridLine{{0xe2, 0xe2, 0xe6}, 1, {}, 1, false}, kAxisLine{kGrey, 1, {}, 1, false};

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

/// Converts data to pixels.
struct Axes {
    double left, top, width, height;
    Range x, y;
    bool log_x, log_y;

    static double share(double v, const Range& range, bool log) {
        return log ? (std::log(v) - std::log(range.low)) / (std::log(range.high) - std::log(range.low))
                   : (v - range.low) / (range.high - range.low);
    }
    double px(double v) const { return left + width * share(v, x, log_x); }
    double py(double v) const { return top + height * (1 - share(v, y, log_y)); }
    double bottom() const { return top + height; }
};

bool has_bar(const Curve& curve, std::size_t i, bool log_y) {
    return i < curve.low.size() && i < curve.high.size() && drawable(curve.low[i], log_y) &&
           drawable(curve.high[i], log_y);
}

Axes make_axes(const CurvePlot& plot, double left, double top, double right, double bottom) {
    Axes axes{left,       top,       plot.width - left - right, plot.height - top - bottom, {}, {},
              plot.log_x, plot.log_y};
    for (const Curve& curve : plot.curves)
        for (std::size_t i = 0; i < curve.x.size(); ++i)
            if (drawable(curve.y[i], plot.log_y)) {
                axes.x.add(curve.x[i]);
                axes.y.add(curve.y[i]);
                if (!has_bar(curve, i, plot.log_y)) continue;
                axes.y.add(curve.low[i]);
                axes.y.add(curve.high[i]);
            }
    if (!plot.x_words.empty()) axes.x = {-0.5, static_cast<double>(plot.x_words.size()) - 0.5};
    if (!(axes.x.low <= axes.x.high)) axes.x = plot.log_x ? Range{1, 10} : Range{0, 1};
    if (!(axes.y.low <= axes.y.high)) axes.y = plot.log_y ? Range{0.1, 1} : Range{0, 1};
    if (axes.x.low == axes.x.high) axes.x.high += 1;
    if (plot.log_y) {
        axes.y = {axes.y.low * 0.9, axes.y.high * 1.1};
    } else {
        // Include zero unless the values are far from it.
        if (axes.y.low > 0 && axes.y.low < 0.6 * axes.y.high) axes.y.low = 0;
        const double pad = axes.y.high > axes.y.low ? 0.05 * (axes.y.high - axes.y.low)
                                                    : std::max(1e-3, 0.05 * std::abs(axes.y.high));
        axes.y.high += pad;
        if (axes.y.low != 0) axes.y.low -= pad;
    }
    return axes;
}

std::vector<Tick> x_ticks(const CurvePlot& plot, const Axes& axes) {
    std::vector<double> ticks;
    if (!plot.x_words.empty()) {
        std::vector<Tick> words;
        for (const std::string& word : plot.x_words)
            words.push_back({static_cast<double>(words.size()), word});
        return words;
    }
    if (plot.log_x) {
        for (const Curve& curve : plot.curves) ticks.insert(ticks.end(), curve.x.begin(), curve.x.end());
        std::sort(ticks.begin(), ticks.end());
        ticks.erase(std::unique(ticks.begin(), ticks.end()), ticks.end());
        // Remove ticks that would touch the previous one.
        double last = -1e9;
        std::erase_if(ticks, [&](double tick) {
            const bool close = axes.px(tick) < last + 34;
            if (!close) last = axes.px(tick);
            return close;
        });
        return labelled(ticks);
    }
    ticks = linear_ticks(axes.x.low, axes.x.high, 11);
    if (plot.whole_x) std::erase_if(ticks, [](double tick) { return tick != std::floor(tick); });
    return labelled(ticks);
}

void draw_axes(Canvas& canvas, const CurvePlot& plot, const Axes& axes) {
    const double bottom = axes.bottom(), right = axes.left + axes.width;
    for (const Tick& tick : labelled(plot.log_y ? log_ticks(axes.y.low, axes.y.high, 8)
                                                : linear_ticks(axes.y.low, axes.y.high, 8))) {
        const double y = axes.py(tick.value);
        canvas.path({{{axes.left, y}, {right, y}}}, kGridLine);
        canvas.text(axes.left - 7, y + 4, tick.text, TextRole::tick, TextAlign::right);
    }
    for (const Tick& tick : x_ticks(plot, axes)) {
        const double x = axes.px(tick.value);
        canvas.path({{{x, bottom}, {x, bottom + 5}}}, kAxisLine);
        canvas.text(x, bottom + 18, tick.text, TextRole::tick, TextAlign::center);
    }
    canvas.path({{{axes.left, axes.top}, {axes.left, bottom}, {right, bottom}}}, kAxisLine);
    canvas.text(22, axes.top + axes.height / 2, plot.y_label, TextRole::label, TextAlign::center, true);
    canvas.text(axes.left + axes.width / 2, bottom + 38, plot.x_label, TextRole::label, TextAlign::center);
}

Stroke stroke_of(const Curve& curve, std::size_t index) {
    if (curve.threshold) return {kGrey, 4, {}, 0.6};
    const Style& style = styles()[index % styles().size()];
    return {style.color, 1.8, style.dash};
}

/// dodge: offset to the right in pixels, so that bars of several curves stand side by side. apart: points
/// without a line between them.
void draw_curve(Canvas& canvas, const Curve& curve, const Axes& axes, const Stroke& stroke, double dodge,
                bool apart) {
    std::vector<Canvas::Run> runs;
    bool pen_down = false;
    for (std::size_t i = 0; i < curve.x.size(); ++i) {
        if (!drawable(curve.y[i], axes.log_y)) {
            pen_down = false;
            continue;
        }
        if (!pen_down) runs.emplace_back();
        runs.back().emplace_back(axes.px(curve.x[i]) + dodge, axes.py(curve.y[i]));
        pen_down = !apart;
    }
    if (runs.empty()) return;
    // A single point has no line: repeat it, and round ends draw a dot.
    for (Canvas::Run& run : runs)
        if (run.size() == 1) run.push_back(run.front());
    canvas.path(runs, apart ? Stroke{stroke.color, 8} : stroke);
    for (std::size_t i = 0; i < curve.x.size(); ++i) {
        if (!drawable(curve.y[i], axes.log_y) || !has_bar(curve, i, axes.log_y)) continue;
        const double x = axes.px(curve.x[i]) + dodge, low = axes.py(curve.low[i]),
                     high = axes.py(curve.high[i]);
        canvas.path({{{x, low}, {x, high}}, {{x - 3, low}, {x + 3, low}}, {{x - 3, high}, {x + 3, high}}},
                    {stroke.color, 1, {}, 0.7});
    }
    if (std::isnan(curve.end_mark)) return;
    const auto [x, y] = runs.back().back();
    canvas.path({{{x - 4, y - 4}, {x + 4, y + 4}}, {{x + 4, y - 4}, {x - 4, y + 4}}}, {kInk, 2});
    if (!curve.end_text.empty()) {
        const bool left = x > axes.left + 0.85 * axes.width;
        canvas.text(x + (left ? -8 : 8), y - 6, curve.end_text, TextRole::halo,
                    left ? TextAlign::right : TextAlign::left);
    }
}

/// Breaks a caption by its number of characters, since the exact width depends on the reader's font.
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

void draw(Canvas& canvas, const CurvePlot& unclamped) {
    CurvePlot plot = unclamped;
    if (plot.log_y && plot.y_floor > 0)
        for (Curve& curve : plot.curves)
            for (double& y : curve.y) y = y < plot.y_floor ? plot.y_floor : y;  // NaN stays
    std::size_t longest = 0;
    for (const Curve& curve : plot.curves) longest = std::max(longest, curve.name.size());
    const double legend_width = std::min(330.0, 62 + 7.0 * static_cast<double>(longest));
    const std::vector<std::string> caption = wrap(plot.caption, to_index(plot.width / 7));
    const double caption_height = plot.caption.empty() ? 0 : 18.0 * static_cast<double>(caption.size());
    const double top = plot.subtitle.empty() ? 50 : 68;
    const Axes axes = make_axes(plot, 84, top, legend_width + 24, 60 + caption_height);
    canvas.text(18, 30, plot.title, TextRole::title);
    if (!plot.subtitle.empty()) canvas.text(18, 50, plot.subtitle, TextRole::subtitle);
    draw_axes(canvas, plot, axes);

    double legend_y = top + 8;
    std::size_t index = 0;
    for (const Curve& curve : plot.curves) {
        const Stroke stroke = stroke_of(curve, index);
        if (!curve.threshold) ++index;
        const double middle = static_cast<double>(plot.curves.size() - 1) / 2;
        draw_curve(canvas, curve, axes, stroke,
                   curve.low.empty() ? 0 : 3 * (static_cast<double>(&curve - plot.curves.data()) - middle),
                   !plot.x_words.empty() && !curve.threshold);
        const double x = axes.left + axes.width + 20;
        canvas.path({{{x, legend_y}, {x + 28, legend_y}}}, stroke);
        canvas.text(x + 35, legend_y + 4, curve.name, TextRole::tick);
        legend_y += 20;
    }
    double y = plot.height - caption_height;
    if (!plot.caption.empty())
        for (const std::string& line : caption) {
            canvas.text(18, y, line, TextRole::note);
            y += 18;
        }
}

}  // namespace

std::string escape_xml(std::string_view text) {
    std::string out;
    while (!text.empty()) {
        const std::size_t n = utf8_length(text);
        const std::string_view one = text.substr(0, std::max<std::size_t>(n, 1));
        const char32_t c = n == 0 ? 0 : utf8_decode(one);
        if (c < 0x20 || c == 0xfffe || c == 0xffff)  // no character of XML
            out += "\xef\xbf\xbd";
        else if (c == '&')
            out += "&amp;";
        else if (c == '<')
            out += "&lt;";
        else if (c == '>')
            out += "&gt;";
        else if (c == '"')
            out += "&quot;";
        else
            out += one;
        text.remove_prefix(one.size());
    }
    return out;
}

std::string draw_curves(const CurvePlot& plot) {
    SvgCanvas canvas(plot.width, plot.height);
    draw(canvas, plot);
    return canvas.take();
}

Image draw_curves_image(const CurvePlot& plot) {
    ImageCanvas canvas(plot.width, plot.height);
    draw(canvas, plot);
    return canvas.take();
}

}  // namespace keyhole
