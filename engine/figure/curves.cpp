#include "engine/figure/curves.h"

#include "engine/base/index.h"
#include "engine/figure/canvas.h"
#include "engine/figure/ticks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

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
/// Returns a thin line with square ends.
Stroke thin(Rgb8 color) {
    return {color, 1, {}, 1, false};
}

// Sizes in em of DejaVu Sans times 1.16, its height from ascent to descent; the ground gives the colours.
const TextStyle kTitle{1.16f * 18.0f, {}, TextAlign::left, FontWeight::bold};
const TextStyle kSubtitle{1.16f * 13.0f}, kAxisTitle{1.16f * 13.0f};
const TextStyle kSmall{1.16f * 12.0f};

TextStyle styled(TextStyle style, Rgb8 color, TextAlign align = TextAlign::left, bool upward = false) {
    style.color = color;
    style.align = align;
    style.upward = upward;
    return style;
}

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
        const auto room = static_cast<float>(axes.width / static_cast<double>(plot.x_words.size()) - 6);
        for (const std::string& word : plot.x_words)
            words.push_back({static_cast<double>(words.size()), fit_text(word, room, kSmall)});
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
    constexpr double kRoom = 45;
    ticks = linear_ticks(axes.x.low, axes.x.high, std::clamp(static_cast<int>(axes.width / kRoom), 2, 11));
    if (plot.whole_x) std::erase_if(ticks, [](double tick) { return tick != std::floor(tick); });
    return labelled(ticks);
}

void draw_axes(Canvas& canvas, const CurvePlot& plot, const Axes& axes) {
    const FigureColors& colors = canvas.colors();
    const double bottom = axes.bottom(), right = axes.left + axes.width;
    for (const Tick& tick : labelled(plot.log_y ? log_ticks(axes.y.low, axes.y.high, 8)
                                                : linear_ticks(axes.y.low, axes.y.high, 8))) {
        const double y = axes.py(tick.value);
        canvas.path({{{axes.left, y}, {right, y}}}, thin(colors.grid));
        canvas.text(axes.left - 7, y + 4, tick.text, styled(kSmall, colors.ink, TextAlign::right));
    }
    for (const Tick& tick : x_ticks(plot, axes)) {
        const double x = axes.px(tick.value);
        canvas.path({{{x, bottom}, {x, bottom + 5}}}, thin(colors.axis));
        canvas.text(x, bottom + 18, tick.text, styled(kSmall, colors.ink, TextAlign::center));
    }
    canvas.path({{{axes.left, axes.top}, {axes.left, bottom}, {right, bottom}}}, thin(colors.axis));
    canvas.text(22, axes.top + axes.height / 2, plot.y_label,
                styled(kAxisTitle, colors.ink, TextAlign::center, true));
    canvas.text(axes.left + axes.width / 2, bottom + 38, plot.x_label,
                styled(kAxisTitle, colors.ink, TextAlign::center));
}

Stroke stroke_of(const Curve& curve, std::size_t index, const FigureColors& colors) {
    if (curve.threshold) return {colors.axis, 4, {}, 0.6};
    const Style& style = styles()[index % styles().size()];
    const bool black = style.color == Rgb8{};  // the list's own; on a dark ground it is the ink
    return {black && colors.paper.r < 128 ? colors.ink : style.color, 1.8, style.dash};
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
    canvas.path({{{x - 4, y - 4}, {x + 4, y + 4}}, {{x + 4, y - 4}, {x - 4, y + 4}}},
                {canvas.colors().ink, 2});
}

/// What is drawn where, in units of text of normal size.
struct Layout {
    CurvePlot plot;  ///< with its width and height in these units
    std::vector<std::string> title, subtitle, caption;
    bool legend_below = false;
    double legend_width = 0, top = 0, caption_height = 0;
    static constexpr double kLine = 20;  ///< of the legend
};

/// Breaks a caption by its number of characters, which are about 7 units wide.
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

Layout lay_out(const CurvePlot& plot, double width) {
    constexpr double kLeastPlot = 280;
    const bool narrow = width < plot.width;
    Layout out;
    out.plot = plot;
    out.plot.width = static_cast<int>(std::lround(width));
    if (plot.log_y && plot.y_floor > 0)
        for (Curve& curve : out.plot.curves)
            for (double& y : curve.y) y = y < plot.y_floor ? plot.y_floor : y;  // NaN stays
    std::size_t longest = 0;
    for (const Curve& curve : plot.curves) longest = std::max(longest, curve.name.size());
    out.legend_width = std::min(330.0, 62 + 7.0 * static_cast<double>(longest));
    out.legend_below = width - 84 - out.legend_width - 24 < kLeastPlot;
    if (out.legend_below) out.legend_width = width - 84 - 24;
    const auto room = static_cast<float>(width - 36);
    out.title = wrap_text(plot.title, room, kTitle);
    out.subtitle = wrap_text(plot.subtitle, room, kSubtitle);
    if (!plot.caption.empty()) out.caption = wrap(plot.caption, to_index(out.plot.width / 7));
    out.caption_height = 18.0 * static_cast<double>(out.caption.size());
    const double more_titles = out.title.size() > 1 ? 22.0 * static_cast<double>(out.title.size() - 1) : 0;
    out.top = 50 + more_titles + 18.0 * static_cast<double>(out.subtitle.size());
    const double below = out.legend_below ? Layout::kLine * static_cast<double>(plot.curves.size()) + 4 : 0;
    out.plot.height += static_cast<int>(more_titles + below) +
                       (out.subtitle.size() > 1 ? 18 * static_cast<int>(out.subtitle.size() - 1) : 0) +
                       (narrow && out.caption.size() > 3 ? 18 * static_cast<int>(out.caption.size() - 3) : 0);
    return out;
}

void draw_plot(Canvas& canvas, const Layout& layout) {
    const CurvePlot& plot = layout.plot;
    const FigureColors& colors = canvas.colors();
    const double n_curves = static_cast<double>(plot.curves.size());
    const double right = layout.legend_below ? 24 : layout.legend_width + 24,
                 below = layout.legend_below ? Layout::kLine * n_curves + 4 : 0;
    const Axes axes = make_axes(plot, 84, layout.top, right, 60 + below + layout.caption_height);
    double y = 30;
    for (const std::string& line : layout.title) {
        canvas.text(18, y, line, styled(kTitle, colors.ink));
        y += 22;
    }
    y -= 2;
    for (const std::string& line : layout.subtitle) {
        canvas.text(18, y, line, styled(kSubtitle, colors.soft));
        y += 18;
    }
    draw_axes(canvas, plot, axes);

    double legend_y = layout.legend_below ? axes.bottom() + 62 : layout.top + 8;
    const double legend_x = layout.legend_below ? axes.left : axes.left + axes.width + 20;
    const auto room = static_cast<float>(layout.legend_width - 31);
    std::size_t index = 0;
    for (const Curve& curve : plot.curves) {
        const Stroke stroke = stroke_of(curve, index, colors);
        if (!curve.threshold) ++index;
        const double middle = (n_curves - 1) / 2;
        draw_curve(canvas, curve, axes, stroke,
                   curve.low.empty() ? 0 : 3 * (static_cast<double>(&curve - plot.curves.data()) - middle),
                   !plot.x_words.empty() && !curve.threshold);
        canvas.path({{{legend_x, legend_y}, {legend_x + 28, legend_y}}}, stroke);
        canvas.text(legend_x + 35, legend_y + 4, fit_text(curve.name, room, kSmall),
                    styled(kSmall, colors.ink));
        legend_y += Layout::kLine;
    }
    y = plot.height - layout.caption_height;
    for (const std::string& line : layout.caption) {
        canvas.text(18, y, line, styled(kSmall, colors.soft));
        y += 18;
    }
}

}  // namespace

Drawing curves_drawing(const CurvePlot& plot) {
    constexpr double kLeastScale = 0.7;
    Drawing drawing;
    drawing.scale = plot.picture_width > 0
                        ? std::max(static_cast<double>(plot.picture_width) / plot.width, kLeastScale)
                        : 1;
    const double width = plot.picture_width > 0 ? plot.picture_width / drawing.scale : plot.width;
    Layout layout = lay_out(plot, width);
    drawing.width = plot.picture_width > 0 ? plot.picture_width : plot.width;
    drawing.height = static_cast<int>(std::lround(layout.plot.height * drawing.scale));
    drawing.ground = plot.ground;
    drawing.title = plot.title;
    drawing.draw = [layout = std::move(layout)](Canvas& canvas) { draw_plot(canvas, layout); };
    return drawing;
}

}  // namespace keyhole
