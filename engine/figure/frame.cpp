#include "engine/figure/frame.h"

#include "engine/base/index.h"
#include "engine/figure/ticks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

namespace keyhole {

namespace {

constexpr int kMaxCell = 12, kLeastFigureWidth = 720, kBarWidth = 260, kBarHeight = 12, kSwatch = 16;
constexpr int kTokenWidth = 96;  // widest token text beside an axis
constexpr int kSideColumn = 10, kSideGap = 5;

// Sizes; the background gives the colours.
const TextStyle kFrameTitle{19, {}, TextAlign::left, FontWeight::bold};
const TextStyle kFrameSubtitle{14};
const TextStyle kBody{13};
const TextStyle kTick{12};
const TextStyle kCaption{13};

TextStyle colored(TextStyle style, Rgb8 color) {
    style.color = color;
    return style;
}

TextStyle aligned(TextStyle style, TextAlign align) {
    style.align = align;
    return style;
}

TextStyle upward(TextStyle style) {
    style.upward = true;
    return style;
}

TextStyle scaled(TextStyle style, double scale) {
    style.size = static_cast<float>(style.size * scale);
    return style;
}

int scaled(int pixels, double scale) {
    return static_cast<int>(std::lround(pixels * scale));
}

/// One label of an axis: the index, and the token's text beside it.
struct Label {
    int index = 0;  ///< in the matrix
    std::string number, token;
    int width(double scale) const {
        return static_cast<int>(std::ceil(text_width(number, scaled(kTick, scale)))) +
               (token.empty() ? 0
                              : scaled(5, scale) +
                                    static_cast<int>(std::ceil(text_width(token, scaled(kTick, scale)))));
    }
};

std::vector<Label> axis_labels(const MatrixAxis& axis, int n, double pixels_per_index, double scale) {
    std::vector<Label> labels;
    const int gap = static_cast<int>(std::ceil(12 * scale / pixels_per_index));
    for (int i : index_ticks(axis.first, n, gap)) {
        Label label{i - axis.first, std::to_string(i), {}};
        const auto t = to_index(label.index);
        if (t < axis.tokens.size())
            label.token =
                fit_text(axis.tokens[t], static_cast<float>(kTokenWidth * scale), scaled(kTick, scale));
        labels.push_back(std::move(label));
    }
    return labels;
}

int widest(const std::vector<Label>& labels, double scale) {
    int width = 0;
    for (const Label& label : labels) width = std::max(width, label.width(scale));
    return width;
}

std::vector<Label> row_labels(const MatrixAxis& axis, const CellLayout& cells) {
    const int n = cells.rows * cells.factor;
    return axis_labels(axis, n, static_cast<double>(cells.height()) / std::max(n, 1), cells.scale);
}

std::vector<Label> column_labels(const MatrixAxis& axis, const CellLayout& cells) {
    const int n = cells.columns * cells.factor;
    return axis_labels(axis, n, static_cast<double>(cells.width()) / std::max(n, 1), cells.scale);
}

/// Returns the x of a plot to the right of these labels.
int left_of(const std::vector<Label>& rows, double scale) {
    return scaled(kFigurePadding + 20, scale) + widest(rows, scale) + scaled(10, scale);
}

/// The width of a side column and its distance from the plot.
int side_of(double scale) {
    return scaled(kSideColumn, scale) + scaled(kSideGap, scale);
}

int right_of(double scale) {
    return scaled(kFigurePadding + 6, scale);
}

/// Returns the middle of an index in pixels from the plot's edge; n indices share the pixels.
float middle(int index, int n, int pixels) {
    return static_cast<float>((index + 0.5) * pixels / n);
}

/// Draws the labels left of the plot: token, number, tick, from left to right.
void draw_row_labels(Canvas& canvas, const std::vector<Label>& labels, int x, int y,
                     const CellLayout& cells) {
    const auto px = [&](int pixels) { return scaled(pixels, cells.scale); };
    const TextStyle number = colored(scaled(kTick, cells.scale), canvas.colors().ink),
                    token = colored(number, canvas.colors().soft);
    for (const Label& label : labels) {
        const float at =
            static_cast<float>(y) + middle(label.index, cells.rows * cells.factor, cells.height());
        canvas.fill(x - px(5), static_cast<int>(at), px(4), std::max(px(1), 1), canvas.colors().line);
        const float baseline = std::round(at + static_cast<float>(4 * cells.scale));
        const auto end = static_cast<float>(x - px(8));
        canvas.text(end, baseline, label.number, aligned(number, TextAlign::right));
        if (!label.token.empty())
            canvas.text(end - text_width(label.number, number) - static_cast<float>(px(5)), baseline,
                        label.token, aligned(token, TextAlign::right));
    }
}

/// Draws the labels below the plot, reading upward: the number ends at the plot, the token stands before
/// it.
void draw_column_labels(Canvas& canvas, const std::vector<Label>& labels, int x, int y,
                        const CellLayout& cells) {
    const auto px = [&](int pixels) { return scaled(pixels, cells.scale); };
    const TextStyle number = colored(scaled(kTick, cells.scale), canvas.colors().ink),
                    token = colored(number, canvas.colors().soft);
    for (const Label& label : labels) {
        const float at =
            static_cast<float>(x) + middle(label.index, cells.columns * cells.factor, cells.width());
        canvas.fill(static_cast<int>(at), y + px(1), std::max(px(1), 1), px(4), canvas.colors().line);
        const float baseline = std::round(at + static_cast<float>(4 * cells.scale));
        const auto end = static_cast<float>(y + px(8));
        canvas.text(baseline, end, label.number, upward(aligned(number, TextAlign::right)));
        if (!label.token.empty())
            canvas.text(baseline, end + text_width(label.number, number) + static_cast<float>(px(5)),
                        label.token, upward(aligned(token, TextAlign::right)));
    }
}

/// Draws the column on the left of the plot, with its name below as those of positions.
void draw_side_column(Canvas& canvas, const MatrixFrame& frame, int x, int y) {
    const CellLayout& cells = frame.cells;
    const int wide = scaled(kSideColumn, cells.scale), left = x - cells.side;
    canvas.cells(left, y, wide, cells.height(), [&](CellPainter& painter) {
        for (int row = 0; row < cells.rows; ++row)
            painter.fill(0, cells.y(row), wide, cells.y(row + 1) - cells.y(row), frame.side(row));
    });
    canvas.outline(left - 1, y - 1, wide + 2, cells.height() + 2, canvas.colors().line);
    const TextStyle style = colored(scaled(kTick, cells.scale), canvas.colors().ink);
    canvas.text(std::round(static_cast<float>(left + wide / 2) + static_cast<float>(4 * cells.scale)),
                static_cast<float>(y + cells.height() + scaled(8, cells.scale)), frame.side_name,
                upward(aligned(style, TextAlign::right)));
}

/// Draws lines above and below the marked columns, outside of the cells, so that no cell is hidden.
void draw_marked_columns(Canvas& canvas, const MarkedColumns& marked, int x, int y, const CellLayout& cells) {
    if (marked.last < marked.first) return;
    const auto edge = [&](int column) {
        return static_cast<int>(std::int64_t{column} * cells.width() / (cells.columns * cells.factor));
    };
    const int thick = std::max(scaled(4, cells.scale), 2), first = edge(marked.first);
    const int wide = std::max(edge(marked.last + 1) - first, 2);
    const Rgb8 color = canvas.colors().differs;
    canvas.fill(x + first, y - 1 - thick, wide, thick, color);
    canvas.fill(x + first, y + cells.height() + 1, wide, thick, color);
}

/// Returns the place of a value along the bar, 0..1: the inverse of value_at().
float place(const ColorScale& scale, float value) {
    const ScaleTerms terms = scale_terms(scale);
    const float a = terms.diverging ? std::abs(value) : value;
    float u = terms.logarithmic ? std::log2(std::max(a, 1e-38f)) : a;
    u = std::clamp((u - terms.offset) * terms.factor, 0.0f, 1.0f);
    if (terms.gamma != 1.0f) u = std::pow(u, terms.gamma);
    return terms.diverging ? 0.5f + 0.5f * (value < 0 ? -u : u) : u;
}

std::vector<double> bar_ticks(const ColorScale& scale) {
    const double low = value_at(scale, scale.diverging ? 0.5f : 0.0f), high = value_at(scale, 1.0f);
    std::vector<double> ticks = scale.logarithmic ? log_ticks(low, high, scale.diverging ? 3 : 6)
                                                  : linear_ticks(low, high, scale.diverging ? 3 : 6);
    if (scale.diverging) {
        const std::vector<double> positive = ticks;
        for (double t : positive)
            if (t > 0) ticks.insert(ticks.begin(), -t);
        if (std::find(ticks.begin(), ticks.end(), 0.0) == ticks.end()) ticks.push_back(0);
    }
    return ticks;
}

void draw_bar(Canvas& canvas, int x, int y, const ColorScale& scale, double size) {
    const int width = scaled(kBarWidth, size), height = scaled(kBarHeight, size);
    canvas.cells(x, y, width, height, [&](CellPainter& painter) {
        for (int i = 0; i < width; ++i)
            painter.fill(i, 0, 1, height, {colormap_table(scale.map)[to_index(i * 256 / width)]});
    });
    canvas.outline(x - 1, y - 1, width + 2, height + 2, canvas.colors().line);
    const TextStyle style = colored(aligned(scaled(kTick, size), TextAlign::center), canvas.colors().ink);
    for (const Tick& tick : labelled(bar_ticks(scale))) {
        const int at = x + static_cast<int>(std::lround(place(scale, static_cast<float>(tick.value)) *
                                                        static_cast<float>(width - 1)));
        canvas.fill(at, y + height + 1, 1, scaled(4, size), canvas.colors().line);
        canvas.text(at, y + height + scaled(16, size), tick.text, style);
    }
}

}  // namespace

CellLayout layout_cells(int n_columns, int n_rows, int max_width, int max_height) {
    const auto ceil_div = [](int n, int d) { return (n + d - 1) / d; };
    CellLayout cells;
    cells.factor =
        std::max({1, ceil_div(n_columns, std::max(max_width, 1)), ceil_div(n_rows, std::max(max_height, 1))});
    cells.columns = ceil_div(n_columns, cells.factor);
    cells.rows = ceil_div(n_rows, cells.factor);
    cells.cell_width = std::clamp(max_width / std::max(cells.columns, 1), 1, kMaxCell);
    cells.cell_height = std::clamp(max_height / std::max(cells.rows, 1), 1, kMaxCell);
    const int square = std::min(cells.cell_width, cells.cell_height);
    const bool wide = cells.columns > 2 * cells.rows;
    cells.cell_width = wide ? cells.cell_width : square;
    cells.cell_height = wide
                            ? std::min(cells.cell_height,
                                       std::max(cells.cell_width, cells.rows * 4 < cells.columns ? 4 : 1) * 3)
                            : square;
    return cells;
}

CellLayout layout_cells(int n_columns, int n_rows, const FigureSize& size, const MatrixAxis& row_axis) {
    if (size.width <= 0 && !size.print.is_sized()) {
        CellLayout cells = layout_cells(n_columns, n_rows, size.max_width, size.max_height);
        if (size.has_side_column) cells.side = side_of(cells.scale);
        return cells;
    }
    const int width = size.width > 0 ? size.width : kUsualFigureWidth;
    const auto ceil_div = [](int n, int d) { return (n + d - 1) / d; };
    CellLayout cells;
    cells.scale = text_scale(width, size.print);
    // The labels' width depends on the cells, and the other way round: keep the width of the widest labels.
    cells.side = size.has_side_column ? side_of(cells.scale) : 0;
    cells.left = left_of({}, cells.scale) + cells.side;
    for (int round = 0; round < 3; ++round) {
        cells.plot_width = std::max(width - cells.left - right_of(cells.scale), 16);
        const double high = cells.plot_width * size.cell_aspect * n_rows / std::max(n_columns, 1);
        cells.plot_height = size.plot_height > 0
                                ? size.plot_height
                                : std::clamp(static_cast<int>(std::lround(high)), 1, kHighestPlot);
        cells.factor =
            std::max({1, ceil_div(n_columns, cells.plot_width), ceil_div(n_rows, cells.plot_height)});
        cells.columns = ceil_div(n_columns, cells.factor);
        cells.rows = ceil_div(n_rows, cells.factor);
        const int left = left_of(row_labels(row_axis, cells), cells.scale) + cells.side;
        if (left <= cells.left) break;
        cells.left = left;
    }
    return cells;
}

double text_scale(int width, const PrintForm& print) {
    return print.scale(kTick, std::clamp(width / double{kUsualFigureWidth}, 0.7, 12.0));
}

Drawing drawing_of_height(FigureSize size, const std::function<Drawing(const FigureSize&)>& draw) {
    const int asked = size.print.height;
    if (asked <= 0) return draw(size);
    constexpr int kLeastPlot = 16, kRounds = 5;
    size.plot_height = std::max(asked / 2, kLeastPlot);
    Drawing drawing = draw(size);
    // Words around the plot depend on its height: labels of rows, and how far cells are reduced.
    for (int round = 0; round < kRounds && drawing.height != asked; ++round) {
        const int high = std::max(size.plot_height + asked - drawing.height, kLeastPlot);
        if (high == size.plot_height) break;
        size.plot_height = high;
        drawing = draw(size);
    }
    if (drawing.height > asked) refuse_height(drawing.width, asked, drawing.height);
    drawing.height = asked;
    return drawing;
}

int draw_heading(Canvas* canvas, int y, int width, const FigureTexts& texts, double scale) {
    const int padding = scaled(kFigurePadding, scale);
    const auto room = static_cast<float>(width - 2 * padding);
    int used = 0;
    const auto lines = [&](const std::string& text, const TextStyle& style, int height, int below,
                           Rgb8 FigureColors::*color) {
        for (const std::string& line : wrap_text(text, room, scaled(style, scale))) {
            used += scaled(height, scale);
            if (canvas)
                canvas->text(padding, y + used - scaled(below, scale), line,
                             colored(scaled(style, scale), canvas->colors().*color));
        }
    };
    lines(texts.title, kFrameTitle, 24, 6, &FigureColors::ink);
    lines(texts.subtitle, kFrameSubtitle, 19, 5, &FigureColors::soft);
    return used + scaled(8, scale);
}

int legend_width(const LegendBar* bar, const std::vector<LegendItem>& items) {
    int width = 0;
    if (bar) width += static_cast<int>(text_width(bar->label, kBody)) + 12 + kBarWidth + 28;
    for (const LegendItem& item : items)
        width += kSwatch + 7 + static_cast<int>(text_width(item.text, kBody)) + 20;
    return width;
}

int draw_legend(Canvas* canvas, int x, int y, const LegendBar* bar, const std::vector<LegendItem>& items,
                double scale, int width) {
    if (!bar && items.empty()) return 0;
    const auto px = [&](int pixels) { return scaled(pixels, scale); };
    TextStyle body = scaled(kBody, scale);
    if (canvas) body.color = canvas->colors().ink;
    const int first_x = x, first_y = y, swatch = px(kSwatch);
    int line = bar ? px(42) : px(28);
    if (bar) {
        if (canvas) canvas->text(x, y + px(12), bar->label, body);
        x += static_cast<int>(text_width(bar->label, body)) + px(12);
        if (canvas) draw_bar(*canvas, x, y + px(2), bar->scale, scale);
        x += px(kBarWidth) + px(28);
    }
    for (const LegendItem& item : items) {
        const int room = swatch + px(7) + static_cast<int>(text_width(item.text, body));
        if (width > 0 && x > first_x && x + room > width - first_x) {
            x = first_x;
            y += line;
            line = px(28);
        }
        if (canvas) {
            canvas->swatch(x, y, swatch, swatch, item.fill);
            canvas->outline(x, y, swatch, swatch, canvas->colors().line);
            canvas->text(x + swatch + px(7), y + px(12), item.text, body);
        }
        x += room + px(20);
    }
    return y - first_y + line;
}

int draw_caption(Canvas* canvas, int y, int width, const std::string& caption, double scale) {
    const int padding = scaled(kFigurePadding, scale);
    const TextStyle style = scaled(kCaption, scale);
    int used = 0;
    for (const std::string& line : wrap_text(caption, static_cast<float>(width - 2 * padding), style)) {
        used += scaled(18, scale);
        if (canvas)
            canvas->text(padding, y + used - scaled(5, scale), line, colored(style, canvas->colors().soft));
    }
    return used;
}

Drawing matrix_drawing(MatrixFrame frame) {
    const CellLayout& cells = frame.cells;
    const double scale = cells.scale;
    const auto px = [scale](int pixels) { return scaled(pixels, scale); };
    const TextStyle body = scaled(kBody, scale);
    const int padding = px(kFigurePadding);
    Drawing drawing;
    drawing.texts = frame.texts;
    frame.texts = frame.print.shown(frame.texts);
    if (frame.marked.last >= frame.marked.first)
        frame.items.push_back({frame.marked.name, {figure_colors(frame.background).differs}});
    if (!frame.has_legend) {
        frame.bar.reset();
        frame.items.clear();
    }
    const LegendBar* bar = frame.bar ? &*frame.bar : nullptr;
    std::vector<Label> rows = row_labels(frame.row_axis, cells);
    std::vector<Label> columns = column_labels(frame.column_axis, cells);

    const bool exact = cells.plot_width > 0;  // the caller requested the picture's width
    const int left = exact ? cells.left : left_of(rows, scale) + cells.side;
    const int width = exact ? left + cells.width() + right_of(scale)
                            : std::max({left + cells.width() + right_of(scale), kLeastFigureWidth,
                                        legend_width(bar, frame.items) + 2 * padding});
    const int legend_room = exact ? width : 0;
    const int heading = draw_heading(nullptr, 0, width, frame.texts, scale);
    const int legend = draw_legend(nullptr, padding, 0, bar, frame.items, scale, legend_room);
    const int top = padding - px(6) + heading + legend + px(6);
    const int row_label_height = static_cast<int>(text_width(frame.row_axis.label, body)) - px(4);
    const int side_name = static_cast<int>(text_width(frame.side_name, scaled(kTick, scale)));
    const int below = std::max(widest(columns, scale), side_name);
    const int axis_bottom =
        top + std::max(cells.height() + px(10) + below + px(6), row_label_height - px(10));
    const int caption_y = axis_bottom + px(26);

    drawing.width = width;
    drawing.height = caption_y + draw_caption(nullptr, 0, width, frame.texts.caption, scale) + padding;
    drawing.background = frame.background;
    const auto kept = std::make_shared<const MatrixFrame>(std::move(frame));
    drawing.draw = [=, rows = std::move(rows), columns = std::move(columns)](Canvas& canvas) {
        const MatrixFrame& f = *kept;
        const CellLayout& c = f.cells;
        const TextStyle label = aligned(colored(body, canvas.colors().ink), TextAlign::center);
        draw_heading(&canvas, padding - px(6), width, f.texts, scale);
        draw_legend(&canvas, padding, padding - px(6) + heading, f.bar ? &*f.bar : nullptr, f.items, scale,
                    legend_room);
        canvas.cells(left, top, c.width(), c.height(), [&](CellPainter& painter) {
            for (int y = 0; y < c.rows; ++y)
                for (int x = 0; x < c.columns; ++x)
                    painter.fill(c.x(x), c.y(y), c.x(x + 1) - c.x(x), c.y(y + 1) - c.y(y), f.cell(x, y));
        });
        canvas.outline(left - 1, top - 1, c.width() + 2, c.height() + 2, canvas.colors().line);
        draw_marked_columns(canvas, f.marked, left, top, c);
        if (f.side) draw_side_column(canvas, f, left, top);
        draw_row_labels(canvas, rows, left - c.side, top, c);
        draw_column_labels(canvas, columns, left, top + c.height(), c);
        // The label of a low matrix starts at its top and continues below it, so that it does not enter the
        // legend.
        const float row_label = std::max(static_cast<float>(c.height()) / 2,
                                         text_width(f.row_axis.label, body) / 2 - static_cast<float>(px(4)));
        canvas.text(padding + px(8), static_cast<float>(top) + row_label, f.row_axis.label, upward(label));
        canvas.text(left + c.width() / 2, axis_bottom + px(10), f.column_axis.label, label);
        draw_caption(&canvas, caption_y, width, f.texts.caption, scale);
    };
    return drawing;
}

}  // namespace keyhole
