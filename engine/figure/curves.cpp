#include "engine/figure/curves.h"

#include "engine/base/index.h"
#include "engine/figure/curve_parts.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace keyhole {

using namespace curve_parts;

namespace {

constexpr double kLine = 20;      // of a legend
constexpr double kLabelGap = 17;  // between names at the ends of lines
constexpr double kSample = 28;    // length of a line in a legend
/// A name is joined to its line's end over at most this share of the axis.
constexpr double kFarthestName = 0.25;

/// The margin left of the axes: the y label and the numbers.
constexpr double kPlotLeft = 84;

std::vector<const Curve*> all_curves(const CurvePlot& plot) {
    std::vector<const Curve*> all;
    if (plot.panels.empty())
        for (const Curve& curve : plot.curves) all.push_back(&curve);
    for (const CurvePanel& panel : plot.panels)
        for (const Curve& curve : panel.curves) all.push_back(&curve);
    return all;
}

/// The places of the parts, in units of text of normal size.
struct Layout {
    CurvePlot plot;  ///< with its width and height in these units
    std::vector<std::string> title, subtitle, caption;
    bool legend_below = false;
    double legend_width = 0, top = 0, caption_height = 0;
    int columns = 0, rows = 0;  ///< of panels; 0: one plot
    double legend_height = 0;   ///< of the lines above panels
    double more_words = 0;      ///< height of words below the axes, beyond one line
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

/// Where each name of a legend of flowing lines stands.
struct LegendPlace {
    double x = 0;
    int line = 0;
    std::string text;
};

std::vector<LegendPlace> flow(const std::vector<const Curve*>& curves, double left, double right) {
    std::vector<LegendPlace> places;
    double x = left;
    int line = 0;
    for (const Curve* curve : curves) {
        const std::string text =
            fit_text(curve->name, static_cast<float>(right - left - kSample - 7), kSmall);
        const double wide = kSample + 7 + static_cast<double>(text_width(text, kSmall));
        if (x > left && x + wide > right) {
            x = left;
            ++line;
        }
        places.push_back({x, line, text});
        x += wide + 20;
    }
    return places;
}

double panel_gap(const CurvePlot& plot) {
    return plot.own_y ? 58 : 32;
}

double panel_width(const CurvePlot& plot, int columns) {
    return (plot.width - kPlotLeft - 24 - panel_gap(plot) * (columns - 1)) / columns;
}

void lay_out_panels(Layout& out) {
    constexpr double kLeastPanel = 170, kPanelHeight = 200;
    CurvePlot& plot = out.plot;
    const auto n = static_cast<int>(plot.panels.size());
    const int fit = std::max(1, static_cast<int>((plot.width - kPlotLeft) / kLeastPanel));
    const int wanted = n <= 4 ? n : n <= 6 ? 3 : 4;
    out.columns = std::min({n, fit, wanted});
    if (n == 4 && out.columns == 3) out.columns = 2;
    out.rows = (n + out.columns - 1) / out.columns;
    const FigureColors colors = figure_colors(plot.background);
    const std::vector<LegendPlace> places =
        flow(Looks(all_curves(plot), colors).listed(), 18, plot.width - 18.0);
    out.legend_height = places.empty() ? 0 : kLine * (places.back().line + 1) + 6;
    out.more_words = word_labels(plot.x_words, panel_width(plot, out.columns)).more;
    plot.height = static_cast<int>(out.top + out.legend_height + out.rows * (kPanelHeight + 46) + 50 +
                                   out.caption_height + out.more_words);
}

Layout lay_out(const CurvePlot& plot, double width) {
    constexpr double kLeastPlot = 280;
    const bool narrow = width < plot.width;
    Layout out;
    out.plot = plot;
    out.plot.width = static_cast<int>(std::lround(width));
    const auto lift = [&](std::vector<Curve>& curves) {
        for (Curve& curve : curves)
            for (double& y : curve.y) y = y < plot.y_floor ? plot.y_floor : y;  // NaN stays
    };
    if (plot.log_y && plot.y_floor > 0) {
        lift(out.plot.curves);
        for (CurvePanel& panel : out.plot.panels) lift(panel.curves);
    }
    const auto room = static_cast<float>(width - 36);
    const FigureTexts texts = plot.print.shown({plot.title, plot.subtitle, plot.caption});
    out.title = wrap_text(texts.title, room, kTitle);
    out.subtitle = wrap_text(texts.subtitle, room, kSubtitle);
    if (!texts.caption.empty()) out.caption = wrap(texts.caption, to_index(out.plot.width / 7));
    out.caption_height = 18.0 * static_cast<double>(out.caption.size());
    const double more_titles = out.title.size() > 1 ? 22.0 * static_cast<double>(out.title.size() - 1) : 0;
    out.top = (plot.print.bare ? 22 : 50) + more_titles + 18.0 * static_cast<double>(out.subtitle.size());
    if (!plot.panels.empty()) {
        lay_out_panels(out);
        return out;
    }
    float longest = 0;
    const std::vector<const Curve*> named = named_curves(plot);
    for (const Curve* curve : named) longest = std::max(longest, text_width(curve->name, kSmall));
    const auto n = static_cast<double>(named.size());
    out.legend_width = named.empty() ? 0 : std::min(330.0, 46 + static_cast<double>(longest));
    out.legend_below = width - kPlotLeft - out.legend_width - 24 < kLeastPlot;
    if (out.legend_below) out.legend_width = width - kPlotLeft - 24;
    const double below = out.legend_below ? kLine * n + 4 : 0;
    const double right = out.legend_below ? 24 : out.legend_width + 24;
    out.more_words = word_labels(plot.x_words, width - kPlotLeft - right).more;
    // Many names beside the lines need a higher picture.
    const double more_names =
        out.legend_below
            ? 0
            : std::max(0.0, kLabelGap * n - (plot.height - out.top - 60 - out.caption_height - more_titles));
    out.plot.height += static_cast<int>(more_titles + below + more_names + out.more_words) +
                       (out.subtitle.size() > 1 ? 18 * static_cast<int>(out.subtitle.size() - 1) : 0) +
                       (narrow && out.caption.size() > 3 ? 18 * static_cast<int>(out.caption.size() - 3) : 0);
    return out;
}

void draw_texts(Canvas& canvas, const Layout& layout) {
    const FigureColors& colors = canvas.colors();
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
    y = layout.plot.height - layout.caption_height;
    for (const std::string& line : layout.caption) {
        canvas.text(18, y, line, styled(kSmall, colors.soft));
        y += 18;
    }
}

/// Draws the labels of both axes. middle: of the axes' height.
void draw_axis_titles(Canvas& canvas, const CurvePlot& plot, double left, double right, double middle,
                      double x_title) {
    const Rgb8 ink = canvas.colors().ink;
    canvas.text(22, middle, plot.y_label, styled(kAxisTitle, ink, TextAlign::center, true));
    canvas.text((left + right) / 2, x_title, plot.x_label, styled(kAxisTitle, ink, TextAlign::center));
}

/// Draws the names beside the ends of their lines.
void draw_end_labels(Canvas& canvas, const CurvePlot& plot, const Axes& axes, const Looks& looks,
                     double room) {
    const bool words = !plot.x_words.empty();
    const double x = axes.right() + 14;
    for (const EndLabel& label : end_labels(named_curves(plot), axes, kLabelGap)) {
        const LineLook& look = looks.of(*label.curve);
        // A dotted line across the plot would look like a curve.
        const bool near = axes.right() - label.x < kFarthestName * axes.width;
        if (label.has_end && near && !words)
            canvas.path({{{label.x, label.y}, {axes.right() + 3, label.y}, {x, label.at}}},
                        {look.stroke.color, 0.8, {1, 3}, 0.9, false});
        draw_sample(canvas, x, label.at, 16, look);
        canvas.text(x + 22, label.at + 4, fit_text(label.curve->name, static_cast<float>(room - 24), kSmall),
                    styled(kSmall, canvas.colors().ink));
    }
}

void draw_plot(Canvas& canvas, const Layout& layout) {
    const CurvePlot& plot = layout.plot;
    const FigureColors& colors = canvas.colors();
    const std::vector<const Curve*> named = named_curves(plot);
    const double n_curves = static_cast<double>(named.size());
    const double right = layout.legend_below ? 24 : layout.legend_width + 24,
                 below = layout.legend_below ? kLine * n_curves + 4 : 0;
    const std::vector<const Curve*> all = all_curves(plot);
    const Ranges ranges = ranges_of(plot, all);
    const Axes axes{kPlotLeft,
                    layout.top,
                    plot.width - kPlotLeft - right,
                    plot.height - layout.top - (60 + below + layout.caption_height + layout.more_words),
                    ranges.x,
                    ranges.y,
                    plot.log_x,
                    plot.log_y};
    const Looks looks(all, colors, plot.ordered);
    draw_texts(canvas, layout);
    draw_axes(canvas, plot, axes, all);
    draw_axis_titles(canvas, plot, axes.left, axes.right(), axes.top + axes.height / 2,
                     axes.bottom() + 38 + layout.more_words);
    draw_curves(canvas, plot, plot.curves, axes, looks);
    if (!layout.legend_below) {
        draw_end_labels(canvas, plot, axes, looks, layout.legend_width - 14);
        return;
    }
    double y = axes.bottom() + 62 + layout.more_words;
    const auto room = static_cast<float>(layout.legend_width - 31);
    for (const Curve* curve : named) {
        draw_sample(canvas, axes.left, y, kSample, looks.of(*curve));
        canvas.text(axes.left + kSample + 7, y + 4, fit_text(curve->name, room, kSmall),
                    styled(kSmall, colors.ink));
        y += kLine;
    }
}

void draw_panels(Canvas& canvas, const Layout& layout) {
    constexpr double kTitleHeight = 20;
    const CurvePlot& plot = layout.plot;
    const FigureColors& colors = canvas.colors();
    const std::vector<const Curve*> all = all_curves(plot);
    const Looks looks(all, colors);
    draw_texts(canvas, layout);
    const std::vector<LegendPlace> places = flow(looks.listed(), 18, plot.width - 18.0);
    for (std::size_t i = 0; i < places.size(); ++i) {
        const double y = layout.top + kLine * places[i].line;
        draw_sample(canvas, places[i].x, y, kSample, looks.of(*looks.listed()[i]));
        canvas.text(places[i].x + kSample + 7, y + 4, places[i].text, styled(kSmall, colors.ink));
    }
    const double top = layout.top + layout.legend_height,
                 bottom = plot.height - layout.caption_height - 60 - layout.more_words;
    const double gap = panel_gap(plot), wide = panel_width(plot, layout.columns),
                 high = (bottom - top) / layout.rows;
    const Ranges shared = ranges_of(plot, all);
    for (std::size_t i = 0; i < plot.panels.size(); ++i) {
        const CurvePanel& panel = plot.panels[i];
        const auto n = static_cast<int>(plot.panels.size());
        const int index = static_cast<int>(i), column = index % layout.columns, row = index / layout.columns;
        std::vector<const Curve*> mine;
        for (const Curve& curve : panel.curves) mine.push_back(&curve);
        const Ranges ranges = plot.own_y ? Ranges{shared.x, ranges_of(plot, mine).y} : shared;
        const Axes axes{kPlotLeft + column * (wide + gap),
                        top + row * high + kTitleHeight,
                        wide,
                        high - kTitleHeight - 26,
                        ranges.x,
                        ranges.y,
                        plot.log_x,
                        plot.log_y};
        canvas.text(axes.left, axes.top - 6, fit_text(panel.title, static_cast<float>(wide), kPanelTitle),
                    styled(kPanelTitle, colors.ink));
        const bool last_of_column = index + layout.columns >= n;
        draw_axes(canvas, plot, axes, all, {last_of_column, plot.own_y || column == 0});
        draw_curves(canvas, plot, panel.curves, axes, looks);
    }
    draw_axis_titles(canvas, plot, kPlotLeft, plot.width - 24.0, (top + bottom) / 2,
                     bottom + 16 + layout.more_words);
}

/// Gives the picture the height that is asked for: the axes take or leave the room.
void stretch(Layout& layout, Drawing& drawing, int height) {
    constexpr double kLeastAxes = 60;
    const int rows = std::max(layout.rows, 1);
    const double words =
        layout.top + layout.legend_height + layout.caption_height + layout.more_words +
        (layout.legend_below ? kLine * static_cast<double>(named_curves(layout.plot).size()) : 0);
    const double least = words + 64 + rows * (layout.rows > 0 ? kLeastAxes + 46 : kLeastAxes);
    if (height < least * drawing.scale)
        refuse_height(drawing.width, height, static_cast<int>(std::ceil(least * drawing.scale)));
    layout.plot.height = static_cast<int>(std::lround(height / drawing.scale));
    drawing.height = height;
}

}  // namespace

Drawing curves_drawing(const CurvePlot& plot) {
    constexpr double kLeastScale = 0.7;
    Drawing drawing;
    drawing.width = plot.picture_width > 0 ? plot.picture_width : plot.width;
    drawing.scale =
        plot.print.scale(kSmall, std::max(static_cast<double>(drawing.width) / plot.width, kLeastScale));
    Layout layout = lay_out(plot, drawing.width / drawing.scale);
    drawing.height = static_cast<int>(std::lround(layout.plot.height * drawing.scale));
    if (plot.print.height > 0) stretch(layout, drawing, plot.print.height);
    drawing.background = plot.background;
    drawing.texts = {plot.title, plot.subtitle, plot.caption};
    drawing.draw = [layout = std::move(layout)](Canvas& canvas) {
        if (layout.plot.panels.empty())
            draw_plot(canvas, layout);
        else
            draw_panels(canvas, layout);
    };
    return drawing;
}

}  // namespace keyhole
