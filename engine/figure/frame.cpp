#include "engine/figure/frame.h"

#include "engine/base/index.h"
#include "engine/figure/ticks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace keyhole {

namespace {

constexpr Rgb8 kInk{32, 32, 36}, kSoftInk{104, 104, 112}, kLine{150, 150, 156};
constexpr int kMaxCell = 12, kLeastFigureWidth = 720, kBarWidth = 260, kBarHeight = 12, kSwatch = 16;
constexpr int kTokenWidth = 96;  // widest token text beside an axis

const TextStyle kTitle{19, kInk, TextAlign::left, FontWeight::bold};
const TextStyle kSubtitle{14, kSoftInk};
const TextStyle kBody{13, kInk};
const TextStyle kTick{12, kInk};
const TextStyle kTickToken{12, kSoftInk};
const TextStyle kCaption{13, kSoftInk};

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
               (token.empty()
                    ? 0
                    : scaled(5, scale) +
                          static_cast<int>(std::ceil(text_width(token, scaled(kTickToken, scale)))));
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
                fit_text(axis.tokens[t], static_cast<float>(kTokenWidth * scale), scaled(kTickToken, scale));
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

int right_of(double scale) {
    return scaled(kFigurePadding + 6, scale);
}

/// Returns the middle of an index in pixels from the plot's edge; n indices share the pixels.
float middle(int index, int n, int pixels) {
    return static_cast<float>((index + 0.5) * pixels / n);
}

/// Draws the labels left of the plot: token, number, tick, from left to right.
void draw_row_labels(Image& image, const std::vector<Label>& labels, int x, int y, const CellLayout& cells) {
    const auto px = [&](int pixels) { return scaled(pixels, cells.scale); };
    const TextStyle number = scaled(kTick, cells.scale), token = scaled(kTickToken, cells.scale);
    for (const Label& label : labels) {
        const float at =
            static_cast<float>(y) + middle(label.index, cells.rows * cells.factor, cells.height());
        const auto tick_y = static_cast<int>(at);
        image.fill(x - px(5), tick_y, px(4), std::max(px(1), 1), kLine);
        const float baseline = std::round(at + static_cast<float>(4 * cells.scale));
        image.text(static_cast<float>(x - px(8)), baseline, label.number, aligned(number, TextAlign::right));
        if (!label.token.empty())
            image.text(
                static_cast<float>(x - px(8)) - text_width(label.number, number) - static_cast<float>(px(5)),
                baseline, label.token, aligned(token, TextAlign::right));
    }
}

/// Draws the labels below the plot, reading upward: the number ends at the plot, the token stands before
/// it.
void draw_column_labels(Image& image, const std::vector<Label>& labels, int x, int y,
                        const CellLayout& cells) {
    const auto px = [&](int pixels) { return scaled(pixels, cells.scale); };
    const TextStyle number = scaled(kTick, cells.scale), token = scaled(kTickToken, cells.scale);
    for (const Label& label : labels) {
        const float at =
            static_cast<float>(x) + middle(label.index, cells.columns * cells.factor, cells.width());
        image.fill(static_cast<int>(at), y + px(1), std::max(px(1), 1), px(4), kLine);
        const float baseline = std::round(at + static_cast<float>(4 * cells.scale));
        image.text(baseline, static_cast<float>(y + px(8)), label.number,
                   upward(aligned(number, TextAlign::right)));
        if (!label.token.empty())
            image.text(
                baseline,
                static_cast<float>(y + px(8)) + text_width(label.number, number) + static_cast<float>(px(5)),
                label.token, upward(aligned(token, TextAlign::right)));
    }
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

void draw_bar(Image& image, int x, int y, const ColorScale& scale, double size) {
    const int width = scaled(kBarWidth, size), height = scaled(kBarHeight, size);
    for (int i = 0; i < width; ++i) {
        const auto entry = to_index(i * 256 / width);
        image.fill(x + i, y, 1, height, colormap_table(scale.map)[entry]);
    }
    image.outline(x - 1, y - 1, width + 2, height + 2, kLine);
    for (const Tick& tick : labelled(bar_ticks(scale))) {
        const int at = x + static_cast<int>(std::lround(place(scale, static_cast<float>(tick.value)) *
                                                        static_cast<float>(width - 1)));
        image.fill(at, y + height + 1, 1, scaled(4, size), kLine);
        image.text(static_cast<float>(at), static_cast<float>(y + height + scaled(16, size)), tick.text,
                   aligned(scaled(kTick, size), TextAlign::center));
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
    if (size.width <= 0) return layout_cells(n_columns, n_rows, size.max_width, size.max_height);
    constexpr int kUsual = 1100;  // width of a picture with text of normal size
    // Bounds the memory of a picture with many more rows than columns.
    constexpr int kHighest = 20'000;
    const auto ceil_div = [](int n, int d) { return (n + d - 1) / d; };
    CellLayout cells;
    cells.scale = std::clamp(static_cast<double>(size.width) / kUsual, 0.7, 12.0);
    // The labels' width depends on the cells, and the other way round: keep the width of the widest labels.
    cells.left = left_of({}, cells.scale);
    for (int round = 0; round < 3; ++round) {
        cells.plot_width = std::max(size.width - cells.left - right_of(cells.scale), 16);
        cells.plot_height = std::clamp(static_cast<int>(std::lround(cells.plot_width * size.cell_aspect *
                                                                    n_rows / std::max(n_columns, 1))),
                                       1, kHighest);
        cells.factor =
            std::max({1, ceil_div(n_columns, cells.plot_width), ceil_div(n_rows, cells.plot_height)});
        cells.columns = ceil_div(n_columns, cells.factor);
        cells.rows = ceil_div(n_rows, cells.factor);
        const int left = left_of(row_labels(row_axis, cells), cells.scale);
        if (left <= cells.left) break;
        cells.left = left;
    }
    return cells;
}

int draw_heading(Image* image, int y, int width, const FigureTexts& texts, double scale) {
    const int padding = scaled(kFigurePadding, scale);
    const auto room = static_cast<float>(width - 2 * padding);
    int used = 0;
    const auto lines = [&](const std::string& text, const TextStyle& style, int height, int below) {
        for (const std::string& line : wrap_text(text, room, scaled(style, scale))) {
            used += scaled(height, scale);
            if (image)
                image->text(static_cast<float>(padding), static_cast<float>(y + used - scaled(below, scale)),
                            line, scaled(style, scale));
        }
    };
    lines(texts.title, kTitle, 24, 6);
    lines(texts.subtitle, kSubtitle, 19, 5);
    return used + scaled(8, scale);
}

int legend_width(const LegendBar* bar, const std::vector<LegendItem>& items) {
    int width = 0;
    if (bar) width += static_cast<int>(text_width(bar->label, kBody)) + 12 + kBarWidth + 28;
    for (const LegendItem& item : items)
        width += kSwatch + 7 + static_cast<int>(text_width(item.text, kBody)) + 20;
    return width;
}

int draw_legend(Image* image, int x, int y, const LegendBar* bar, const std::vector<LegendItem>& items,
                double scale, int width) {
    if (!bar && items.empty()) return 0;
    const auto px = [&](int pixels) { return scaled(pixels, scale); };
    const TextStyle body = scaled(kBody, scale);
    const int first_x = x, first_y = y, swatch = px(kSwatch);
    int line = bar ? px(42) : px(28);
    if (bar) {
        if (image) image->text(static_cast<float>(x), static_cast<float>(y + px(12)), bar->label, body);
        x += static_cast<int>(text_width(bar->label, body)) + px(12);
        if (image) draw_bar(*image, x, y + px(2), bar->scale, scale);
        x += px(kBarWidth) + px(28);
    }
    for (const LegendItem& item : items) {
        const int room = swatch + px(7) + static_cast<int>(text_width(item.text, body));
        if (width > 0 && x > first_x && x + room > width - first_x) {
            x = first_x;
            y += line;
            line = px(28);
        }
        if (image) {
            item.paint(*image, x, y, swatch, swatch);
            image->outline(x, y, swatch, swatch, kLine);
            image->text(static_cast<float>(x + swatch + px(7)), static_cast<float>(y + px(12)), item.text,
                        body);
        }
        x += room + px(20);
    }
    return y - first_y + line;
}

int draw_caption(Image* image, int y, int width, const std::string& caption, double scale) {
    const int padding = scaled(kFigurePadding, scale);
    int used = 0;
    for (const std::string& line :
         wrap_text(caption, static_cast<float>(width - 2 * padding), scaled(kCaption, scale))) {
        used += scaled(18, scale);
        if (image)
            image->text(static_cast<float>(padding), static_cast<float>(y + used - scaled(5, scale)), line,
                        scaled(kCaption, scale));
    }
    return used;
}

Image draw_matrix(const MatrixFrame& frame) {
    const CellLayout& cells = frame.cells;
    const double scale = cells.scale;
    const auto px = [&](int pixels) { return scaled(pixels, scale); };
    const TextStyle body = scaled(kBody, scale);
    const int padding = px(kFigurePadding);
    const std::vector<Label> rows = row_labels(frame.row_axis, cells);
    const std::vector<Label> columns = column_labels(frame.column_axis, cells);

    const bool exact = cells.plot_width > 0;  // the caller requested the picture's width
    const int left = exact ? cells.left : left_of(rows, scale);
    const int width = exact ? left + cells.width() + right_of(scale)
                            : std::max({left + cells.width() + right_of(scale), kLeastFigureWidth,
                                        legend_width(frame.bar, frame.items) + 2 * padding});
    const int legend_room = exact ? width : 0;
    const int heading = draw_heading(nullptr, 0, width, frame.texts, scale);
    const int legend = draw_legend(nullptr, padding, 0, frame.bar, frame.items, scale, legend_room);
    const int top = padding - px(6) + heading + legend + px(6);
    const int row_label_height = static_cast<int>(text_width(frame.row_axis.label, body)) - px(4);
    const int axis_bottom =
        top + std::max(cells.height() + px(10) + widest(columns, scale) + px(6), row_label_height - px(10));
    const int caption_y = axis_bottom + px(26);
    const int height = caption_y + draw_caption(nullptr, 0, width, frame.texts.caption, scale) + padding;

    Image image(width, height);
    draw_heading(&image, padding - px(6), width, frame.texts, scale);
    draw_legend(&image, padding, padding - px(6) + heading, frame.bar, frame.items, scale, legend_room);
    for (int y = 0; y < cells.rows; ++y)
        for (int x = 0; x < cells.columns; ++x)
            frame.paint(image, left + cells.x(x), top + cells.y(y), cells.x(x + 1) - cells.x(x),
                        cells.y(y + 1) - cells.y(y), x, y);
    image.outline(left - 1, top - 1, cells.width() + 2, cells.height() + 2, kLine);
    draw_row_labels(image, rows, left, top, cells);
    draw_column_labels(image, columns, left, top + cells.height(), cells);
    // The label of a low matrix starts at its top and continues below it, so that it does not enter the
    // legend.
    const float row_label = std::max(static_cast<float>(cells.height()) / 2,
                                     text_width(frame.row_axis.label, body) / 2 - static_cast<float>(px(4)));
    image.text(static_cast<float>(padding + px(8)), static_cast<float>(top) + row_label, frame.row_axis.label,
               upward(aligned(body, TextAlign::center)));
    image.text(static_cast<float>(left + cells.width() / 2), static_cast<float>(axis_bottom + px(10)),
               frame.column_axis.label, aligned(body, TextAlign::center));
    draw_caption(&image, caption_y, width, frame.texts.caption, scale);
    return image;
}

}  // namespace keyhole
