#include "engine/figure/curve_parts.h"
#include "engine/figure/lane_look.h"

#include "engine/base/index.h"
#include "engine/figure/colormap.h"
#include "engine/figure/lane_look.h"
#include "engine/figure/ticks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>

namespace keyhole::curve_parts {

namespace {

constexpr int kMarkers = 8;
constexpr std::size_t kMostMarked = 40;  // points of a curve with a marker each

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

bool drawable(double y, bool log_y) {
    return std::isfinite(y) && (!log_y || y > 0);
}

bool has_bar(const Curve& curve, std::size_t i, bool log_y) {
    return i < curve.low.size() && i < curve.high.size() && drawable(curve.low[i], log_y) &&
           drawable(curve.high[i], log_y);
}

double share_of(double v, const Range& range, bool log) {
    return log ? (std::log(v) - std::log(range.low)) / (std::log(range.high) - std::log(range.low))
               : (v - range.low) / (range.high - range.low);
}

std::vector<Tick> x_ticks(const CurvePlot& plot, const Axes& axes, const std::vector<const Curve*>& curves) {
    std::vector<double> ticks;
    if (plot.log_x) {
        for (const Curve* curve : curves) ticks.insert(ticks.end(), curve->x.begin(), curve->x.end());
        std::sort(ticks.begin(), ticks.end());
        ticks.erase(std::unique(ticks.begin(), ticks.end()), ticks.end());
        constexpr std::size_t kMostOwn = 12;
        const bool odd =
            std::any_of(ticks.begin(), ticks.end(), [](double t) { return t > 2 && t != std::floor(t); });
        if (odd || ticks.size() > kMostOwn) ticks = log_ticks(axes.x.low, axes.x.high, 6);
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

std::vector<Tick> y_ticks(const Axes& axes) {
    const int most = std::clamp(static_cast<int>(axes.height / 34), 3, 8);
    if (!axes.log_y) return labelled(linear_ticks(axes.y.low, axes.y.high, most));
    std::vector<double> ticks = log_ticks(axes.y.low, axes.y.high, most);
    // One or two powers of ten are too few to read values by: add 2 and 5 times each.
    if (axes.y.high < 300 * axes.y.low) {
        std::vector<double> more;
        for (int e = static_cast<int>(std::floor(std::log10(axes.y.low))); std::pow(10, e) <= axes.y.high;
             ++e)
            for (const double m : {1.0, 2.0, 5.0})
                if (const double v = m * std::pow(10, e); v >= axes.y.low && v <= axes.y.high)
                    more.push_back(v);
        if (more.size() > ticks.size()) ticks = more;
    }
    return labelled(ticks);
}

/// Splits a word behind its colons, commas and blanks.
std::vector<std::string> pieces_of(const std::string& word) {
    std::vector<std::string> pieces(1);
    for (const char c : word) {
        pieces.back() += c;
        if (c == ':' || c == ',' || c == ' ') pieces.emplace_back();
    }
    if (pieces.back().empty() && pieces.size() > 1) pieces.pop_back();
    return pieces;
}

double width_of(const std::string& text) {
    return static_cast<double>(text_width(text, kSmall));
}

void draw_words(Canvas& canvas, const CurvePlot& plot, const Axes& axes, bool with_texts) {
    const WordLabels labels = word_labels(plot.x_words, axes.width);
    const double bottom = axes.bottom();
    for (std::size_t i = 0; i < labels.lines.size(); ++i) {
        const double x = axes.px(static_cast<double>(i));
        canvas.path({{{x, bottom}, {x, bottom + 5}}}, thin(canvas.colors().axis));
        for (std::size_t line = 0; with_texts && line < labels.lines[i].size(); ++line) {
            if (labels.upward)
                canvas.text(x + 4, bottom + 9, labels.lines[i][line],
                            styled(kSmall, canvas.colors().ink, TextAlign::right, true));
            else
                canvas.text(x, bottom + 18 + WordLabels::kLine * static_cast<double>(line),
                            labels.lines[i][line], styled(kSmall, canvas.colors().ink, TextAlign::center));
        }
    }
}

/// Draws a marker. Each has a shape of its own; the first is a dot.
void draw_marker(Canvas& canvas, double x, double y, int marker, Rgb8 color, double r) {
    const Stroke line{color, 1.6};
    const auto shape = [&](const std::vector<std::pair<double, double>>& points) {
        Canvas::Run run;
        for (const auto& [dx, dy] : points) run.emplace_back(x + r * dx, y + r * dy);
        canvas.path({run}, line);
    };
    switch (marker % kMarkers) {
        case 0:
            return canvas.path({{{x, y}, {x, y}}}, {color, 2 * r});
        case 1:
            return shape({{-1, -1}, {1, -1}, {1, 1}, {-1, 1}, {-1, -1}});
        case 2:
            return shape({{0, -1.2}, {1.1, 0.9}, {-1.1, 0.9}, {0, -1.2}});
        case 3:
            return shape({{0, -1.4}, {1.4, 0}, {0, 1.4}, {-1.4, 0}, {0, -1.4}});
        case 4: {
            std::vector<std::pair<double, double>> ring;
            for (int i = 0; i <= 12; ++i) ring.emplace_back(std::cos(i * M_PI / 6), std::sin(i * M_PI / 6));
            return shape(ring);
        }
        case 5:
            return canvas.path({{{x - 1.3 * r, y}, {x + 1.3 * r, y}}, {{x, y - 1.3 * r}, {x, y + 1.3 * r}}},
                               line);
        case 6:
            return shape({{0, 1.2}, {1.1, -0.9}, {-1.1, -0.9}, {0, 1.2}});
        default:
            return shape({{-1, -1.2}, {1, -1.2}, {-1, 1.2}, {1, 1.2}, {-1, -1.2}});
    }
}

/// Returns where the cross stands: at its x, on the line or at the line's end.
std::optional<std::pair<double, double>> place_of_cross(const Curve& curve, const Axes& axes) {
    if (!std::isfinite(curve.end_mark)) return std::nullopt;
    std::optional<std::pair<double, double>> before;
    const double x = axes.px(curve.end_mark);
    for (std::size_t i = 0; i < curve.x.size(); ++i) {
        if (!drawable(curve.y[i], axes.log_y)) continue;
        const std::pair<double, double> here{axes.px(curve.x[i]), axes.py(curve.y[i])};
        if (here.first >= x) {
            if (!before || here.first == x) return std::pair{x, here.second};
            const double share = (x - before->first) / (here.first - before->first);
            return std::pair{x, before->second + share * (here.second - before->second)};
        }
        before = here;
    }
    if (before) before->first = x;
    return before;
}

/// dodge: offset to the right, so that bars of several curves stand side by side. apart: points without a
/// line between them.
void draw_curve(Canvas& canvas, const Curve& curve, const Axes& axes, const LineLook& look, double dodge,
                bool apart) {
    std::vector<Canvas::Run> runs;
    Canvas::Run points;
    bool pen_down = false;
    for (std::size_t i = 0; i < curve.x.size(); ++i) {
        if (!drawable(curve.y[i], axes.log_y)) {
            pen_down = false;
            continue;
        }
        if (!pen_down) runs.emplace_back();
        runs.back().emplace_back(axes.px(curve.x[i]) + dodge, axes.py(curve.y[i]));
        points.push_back(runs.back().back());
        pen_down = true;
    }
    if (runs.empty()) return;
    // A single point has no line: repeat it, and round ends draw a dot.
    for (Canvas::Run& run : runs)
        if (run.size() == 1) run.push_back(run.front());
    if (!apart) canvas.path(runs, look.stroke);
    for (std::size_t i = 0; i < curve.x.size(); ++i) {
        if (!drawable(curve.y[i], axes.log_y) || !has_bar(curve, i, axes.log_y)) continue;
        const double x = axes.px(curve.x[i]) + dodge, low = axes.py(curve.low[i]),
                     high = axes.py(curve.high[i]);
        canvas.path({{{x, low}, {x, high}}, {{x - 3, low}, {x + 3, low}}, {{x - 3, high}, {x + 3, high}}},
                    {look.stroke.color, 1, {}, 0.7});
    }
    if (look.marker >= 0 && (apart || points.size() <= kMostMarked))
        for (const auto& [x, y] : points)
            draw_marker(canvas, x, y, look.marker, look.stroke.color, apart ? 4.5 : 3.2);
    if (const auto cross = place_of_cross(curve, axes)) {
        const auto [x, y] = *cross;
        canvas.path({{{x - 4, y - 4}, {x + 4, y + 4}}, {{x + 4, y - 4}, {x - 4, y + 4}}},
                    {canvas.colors().ink, 2});
    }
}

}  // namespace

WordLabels word_labels(const std::vector<std::string>& words, double width) {
    constexpr std::size_t kMostLines = 3;
    constexpr double kMostUpward = 190;
    WordLabels labels;
    if (words.empty()) return labels;
    const double room = width / static_cast<double>(words.size()) - 6;
    for (const std::string& word : words) {
        std::vector<std::string>& lines = labels.lines.emplace_back(1);
        for (const std::string& piece : pieces_of(word)) {
            if (!lines.back().empty() && width_of(lines.back() + piece) > room) lines.emplace_back();
            lines.back() += piece;
            labels.upward = labels.upward || width_of(piece) > room;
        }
        labels.upward = labels.upward || lines.size() > kMostLines;
        labels.more = std::max(labels.more, WordLabels::kLine * static_cast<double>(lines.size() - 1));
    }
    if (!labels.upward) return labels;
    labels.more = 0;
    for (std::size_t i = 0; i < words.size(); ++i) {
        labels.lines[i] = {fit_text(words[i], kMostUpward, kSmall)};
        labels.more = std::max(labels.more, width_of(labels.lines[i].front()) - 8);
    }
    return labels;
}

TextStyle styled(TextStyle style, Rgb8 color, TextAlign align, bool upward) {
    style.color = color;
    style.align = align;
    style.upward = upward;
    return style;
}

void Range::add(double v) {
    low = std::min(low, v);
    high = std::max(high, v);
}

double Axes::px(double v) const {
    return left + width * share_of(v, x, log_x);
}

double Axes::py(double v) const {
    return top + height * (1 - share_of(v, y, log_y));
}

Ranges ranges_of(const CurvePlot& plot, const std::vector<const Curve*>& curves) {
    Ranges ranges;
    Range &x = ranges.x, &y = ranges.y;
    for (const Curve* curve : curves) {
        if (curve->hidden) continue;
        bool any = false;
        for (std::size_t i = 0; i < curve->x.size(); ++i)
            if (drawable(curve->y[i], plot.log_y)) {
                any = true;
                x.add(curve->x[i]);
                y.add(curve->y[i]);
                if (!has_bar(*curve, i, plot.log_y)) continue;
                y.add(curve->low[i]);
                y.add(curve->high[i]);
            }
        if (any && std::isfinite(curve->end_mark)) x.add(curve->end_mark);
    }
    if (!plot.x_words.empty()) x = {-0.5, static_cast<double>(plot.x_words.size()) - 0.5};
    if (!(x.low <= x.high)) x = plot.log_x ? Range{1, 10} : Range{0, 1};
    if (!(y.low <= y.high)) y = plot.log_y ? Range{0.1, 1} : Range{0, 1};
    if (x.low == x.high) x = plot.log_x ? Range{x.low / 2, x.high * 2} : Range{x.low, x.high + 1};
    if (plot.log_y) {
        y = {y.low * 0.9, y.high * 1.1};
    } else {
        // Include zero unless the values are far from it.
        if (y.low > 0 && y.low < 0.6 * y.high) y.low = 0;
        const double pad = y.high > y.low ? 0.05 * (y.high - y.low) : std::max(1e-3, 0.05 * std::abs(y.high));
        y.high += pad;
        if (y.low != 0) y.low -= pad;
    }
    return ranges;
}

Looks::Looks(const std::vector<const Curve*>& curves, const FigureColors& colors, bool ordered) {
    std::size_t n_lines = 0, n_thresholds = 0;
    const auto n = static_cast<std::size_t>(
        std::count_if(curves.begin(), curves.end(), [](const Curve* curve) { return !curve->threshold; }));
    const bool ramp = ordered && n > styles().size();
    // The end of the colour table that the background has is left out.
    const bool dark = colors.paper.r < 128;
    const auto ramp_color = [&](std::size_t i) {
        const std::size_t entry = i * 205 / (n - 1);
        return colormap_table(Colormap::viridis)[dark ? entry + 50 : entry];
    };
    for (const Curve* curve : curves) {
        const auto [at, is_new] = looks_.try_emplace(curve->name);
        if (!is_new) continue;
        if (!curve->hidden) listed_.push_back(curve);
        if (curve->threshold) {
            static const std::array<std::vector<double>, 3> kDashes = {{{8, 4}, {2, 4}, {12, 4, 2, 4}}};
            at->second.stroke = n_thresholds == 0
                                    ? Stroke{colors.axis, 4, {}, 0.6}
                                    : Stroke{colors.axis, 1.6, kDashes[(n_thresholds - 1) % kDashes.size()]};
            ++n_thresholds;
            continue;
        }
        if (ramp) {
            at->second.stroke = {ramp_color(n_lines++), 1.3};
            continue;
        }
        if (curve->look >= 0) {
            const LaneLook look = lane_look(curve->look, dark ? Background::dark : Background::light);
            at->second = {{look.color, 1.8, {look.dash.begin(), look.dash.end()}}, curve->look % kMarkers};
            continue;
        }
        const Style& style = styles()[n_lines % styles().size()];
        const bool black = style.color == Rgb8{};  // the list's own; on a dark background it is the ink
        at->second = {{black && dark ? colors.ink : style.color, 1.8, style.dash},
                      static_cast<int>(n_lines % kMarkers)};
        ++n_lines;
    }
}

void draw_axes(Canvas& canvas, const CurvePlot& plot, const Axes& axes,
               const std::vector<const Curve*>& curves, AxisTexts texts) {
    const FigureColors& colors = canvas.colors();
    const double bottom = axes.bottom(), right = axes.right();
    for (const Tick& tick : y_ticks(axes)) {
        const double y = axes.py(tick.value);
        canvas.path({{{axes.left, y}, {right, y}}}, thin(colors.grid));
        if (texts.y)
            canvas.text(axes.left - 7, y + 4, tick.text, styled(kSmall, colors.ink, TextAlign::right));
    }
    if (!plot.x_words.empty())
        draw_words(canvas, plot, axes, texts.x);
    else
        for (const Tick& tick : x_ticks(plot, axes, curves)) {
            const double x = axes.px(tick.value);
            canvas.path({{{x, bottom}, {x, bottom + 5}}}, thin(colors.axis));
            if (texts.x)
                canvas.text(x, bottom + 18, tick.text, styled(kSmall, colors.ink, TextAlign::center));
        }
    canvas.path({{{axes.left, axes.top}, {axes.left, bottom}, {right, bottom}}}, thin(colors.axis));
}

void draw_curves(Canvas& canvas, const CurvePlot& plot, const std::vector<Curve>& curves, const Axes& axes,
                 const Looks& looks) {
    std::size_t n_barred = 0;
    for (const Curve& curve : curves) n_barred += curve.low.empty() ? 0 : 1;
    const bool words = !plot.x_words.empty();
    const double slot = words ? axes.width / static_cast<double>(plot.x_words.size()) : 0;
    const double step =
        words ? std::min(14.0, 0.7 * slot / static_cast<double>(std::max<std::size_t>(n_barred, 1))) : 3;
    double index = 0;
    for (const Curve& curve : curves) {
        if (curve.hidden) continue;
        const double middle = (static_cast<double>(n_barred) - 1) / 2;
        draw_curve(canvas, curve, axes, looks.of(curve), curve.low.empty() ? 0 : step * (index - middle),
                   words && !curve.threshold);
        if (!curve.low.empty()) ++index;
    }
}

void draw_sample(Canvas& canvas, double x, double y, double width, const LineLook& look) {
    canvas.path({{{x, y}, {x + width, y}}}, look.stroke);
    if (look.marker >= 0) draw_marker(canvas, x + width / 2, y, look.marker, look.stroke.color, 3.2);
}

std::vector<EndLabel> end_labels(const std::vector<const Curve*>& curves, const Axes& axes, double gap) {
    std::vector<EndLabel> labels;
    for (const Curve* curve : curves) {
        EndLabel label{curve, axes.right(), axes.bottom(), 0, false};
        for (std::size_t i = 0; i < curve->x.size(); ++i)
            if (drawable(curve->y[i], axes.log_y)) {
                label.x = axes.px(curve->x[i]);
                label.y = axes.py(curve->y[i]);
                label.has_end = true;
            }
        label.at = label.y;
        labels.push_back(label);
    }
    std::stable_sort(labels.begin(), labels.end(),
                     [](const EndLabel& a, const EndLabel& b) { return a.at < b.at; });
    for (std::size_t i = 1; i < labels.size(); ++i)
        labels[i].at = std::max(labels[i].at, labels[i - 1].at + gap);
    // Move labels that were pushed below the axes up again, as far as there is room.
    double most = axes.bottom() + 4;
    for (std::size_t i = labels.size(); i-- > 0; most = labels[i].at - gap)
        labels[i].at = std::min(labels[i].at, most);
    if (!labels.empty() && labels.front().at < axes.top)
        for (std::size_t i = 0; i < labels.size(); ++i)
            labels[i].at = std::max(labels[i].at, axes.top + gap * static_cast<double>(i));
    return labels;
}

std::vector<const Curve*> named_curves(const CurvePlot& plot) {
    std::vector<const Curve*> lines, named;
    for (const Curve& curve : plot.curves)
        if (!curve.threshold) lines.push_back(&curve);
    const bool some = plot.ordered && lines.size() > styles().size();
    constexpr std::size_t kParts = 4;
    for (const Curve& curve : plot.curves) {
        // A name that says no more than the axis does is left out.
        if (plot.curves.size() == 1 && curve.name == plot.y_label) continue;
        if (curve.hidden) continue;
        bool is_named = curve.threshold || !some;
        for (std::size_t part = 0; some && part <= kParts; ++part)
            is_named = is_named || &curve == lines[part * (lines.size() - 1) / kParts];
        if (is_named) named.push_back(&curve);
    }
    return named;
}

}  // namespace keyhole::curve_parts
