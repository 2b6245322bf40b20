#include "engine/figure/frame.h"

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

/// One label of an axis: the index, and the token's text beside it.
struct Label {
    int index = 0;  ///< in the matrix
    std::string number, token;
    int width() const {
        return static_cast<int>(std::ceil(text_width(number, kTick))) +
               (token.empty() ? 0 : 5 + static_cast<int>(std::ceil(text_width(token, kTickToken))));
    }
};

std::vector<Label> axis_labels(const MatrixAxis& axis, int n, double pixels_per_index) {
    std::vector<Label> labels;
    const int gap = static_cast<int>(std::ceil(12 / pixels_per_index));
    for (int i : index_ticks(axis.first, n, gap)) {
        Label label{i - axis.first, std::to_string(i), {}};
        const auto t = static_cast<std::size_t>(label.index);
        if (t < axis.tokens.size()) label.token = fit_text(axis.tokens[t], kTokenWidth, kTickToken);
        labels.push_back(std::move(label));
    }
    return labels;
}

int widest(const std::vector<Label>& labels) {
    int width = 0;
    for (const Label& label : labels) width = std::max(width, label.width());
    return width;
}

/// Matrix index to pixels from the plot's edge: the middle of the index.
float middle(int index, int factor, int cell) {
    return (static_cast<float>(index) + 0.5f) * static_cast<float>(cell) / static_cast<float>(factor);
}

/// Left of the plot: tick, token, number nearest to the plot.
void draw_row_labels(Image& image, const std::vector<Label>& labels, int x, int y, const CellLayout& cells) {
    for (const Label& label : labels) {
        const float at = static_cast<float>(y) + middle(label.index, cells.factor, cells.cell_height);
        const auto tick_y = static_cast<int>(at);
        image.fill(x - 5, tick_y, 4, 1, kLine);
        const float baseline = std::round(at + 4);
        image.text(static_cast<float>(x - 8), baseline, label.number, aligned(kTick, TextAlign::right));
        if (!label.token.empty())
            image.text(static_cast<float>(x - 8) - text_width(label.number, kTick) - 5, baseline, label.token,
                       aligned(kTickToken, TextAlign::right));
    }
}

/// Below the plot, reading upward: the number ends at the plot, the token stands before it.
void draw_column_labels(Image& image, const std::vector<Label>& labels, int x, int y,
                        const CellLayout& cells) {
    for (const Label& label : labels) {
        const float at = static_cast<float>(x) + middle(label.index, cells.factor, cells.cell_width);
        image.fill(static_cast<int>(at), y + 1, 1, 4, kLine);
        const float baseline = std::round(at + 4);
        image.text(baseline, static_cast<float>(y + 8), label.number,
                   upward(aligned(kTick, TextAlign::right)));
        if (!label.token.empty())
            image.text(baseline, static_cast<float>(y + 8) + text_width(label.number, kTick) + 5, label.token,
                       upward(aligned(kTickToken, TextAlign::right)));
    }
}

/// Place of a value along the bar, 0..1: the inverse of value_at without the table's steps.
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

void draw_bar(Image& image, int x, int y, const ColorScale& scale) {
    for (int i = 0; i < kBarWidth; ++i) {
        const auto entry = static_cast<std::size_t>(i * 256 / kBarWidth);
        image.fill(x + i, y, 1, kBarHeight, colormap_table(scale.map)[entry]);
    }
    image.outline(x - 1, y - 1, kBarWidth + 2, kBarHeight + 2, kLine);
    for (double tick : bar_ticks(scale)) {
        const int at =
            x + static_cast<int>(std::lround(place(scale, static_cast<float>(tick)) * (kBarWidth - 1)));
        image.fill(at, y + kBarHeight + 1, 1, 4, kLine);
        image.text(static_cast<float>(at), static_cast<float>(y + kBarHeight + 16), tick_text(tick),
                   aligned(kTick, TextAlign::center));
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

int draw_heading(Image* image, int y, int width, const FigureTexts& texts) {
    const auto room = static_cast<float>(width - 2 * kFigurePadding);
    int used = 0;
    for (const std::string& line : wrap_text(texts.title, room, kTitle)) {
        used += 24;
        if (image) image->text(kFigurePadding, static_cast<float>(y + used - 6), line, kTitle);
    }
    for (const std::string& line : wrap_text(texts.subtitle, room, kSubtitle)) {
        used += 19;
        if (image) image->text(kFigurePadding, static_cast<float>(y + used - 5), line, kSubtitle);
    }
    return used + 8;
}

int legend_width(const LegendBar* bar, const std::vector<LegendItem>& items) {
    int width = 0;
    if (bar) width += static_cast<int>(text_width(bar->label, kBody)) + 12 + kBarWidth + 28;
    for (const LegendItem& item : items)
        width += kSwatch + 7 + static_cast<int>(text_width(item.text, kBody)) + 20;
    return width;
}

int draw_legend(Image* image, int x, int y, const LegendBar* bar, const std::vector<LegendItem>& items) {
    if (!bar && items.empty()) return 0;
    if (image) {
        if (bar) {
            image->text(static_cast<float>(x), static_cast<float>(y + 12), bar->label, kBody);
            x += static_cast<int>(text_width(bar->label, kBody)) + 12;
            draw_bar(*image, x, y + 2, bar->scale);
            x += kBarWidth + 28;
        }
        for (const LegendItem& item : items) {
            item.paint(*image, x, y, kSwatch, kSwatch);
            image->outline(x, y, kSwatch, kSwatch, kLine);
            image->text(static_cast<float>(x + kSwatch + 7), static_cast<float>(y + 12), item.text, kBody);
            x += kSwatch + 7 + static_cast<int>(text_width(item.text, kBody)) + 20;
        }
    }
    return bar ? 42 : 28;
}

int draw_caption(Image* image, int y, int width, const std::string& caption) {
    int used = 0;
    for (const std::string& line :
         wrap_text(caption, static_cast<float>(width - 2 * kFigurePadding), kCaption)) {
        used += 18;
        if (image) image->text(kFigurePadding, static_cast<float>(y + used - 5), line, kCaption);
    }
    return used;
}

Image draw_matrix(const MatrixFrame& frame) {
    const CellLayout& cells = frame.cells;
    const auto per_index = [&](int cell) { return static_cast<double>(cell) / cells.factor; };
    const std::vector<Label> rows =
        axis_labels(frame.row_axis, cells.rows * cells.factor, per_index(cells.cell_height));
    const std::vector<Label> columns =
        axis_labels(frame.column_axis, cells.columns * cells.factor, per_index(cells.cell_width));

    const int left = kFigurePadding + 20 + widest(rows) + 10;
    const int width = std::max({left + cells.width() + kFigurePadding + 6, kLeastFigureWidth,
                                legend_width(frame.bar, frame.items) + 2 * kFigurePadding});
    const int heading = draw_heading(nullptr, 0, width, frame.texts);
    const int legend = draw_legend(nullptr, 0, 0, frame.bar, frame.items);
    const int top = kFigurePadding - 6 + heading + legend + 6;
    const int row_label_height = static_cast<int>(text_width(frame.row_axis.label, kBody)) - 4;
    const int axis_bottom = top + std::max(cells.height() + 10 + widest(columns) + 6, row_label_height - 10);
    const int caption_y = axis_bottom + 26;
    const int height = caption_y + draw_caption(nullptr, 0, width, frame.texts.caption) + kFigurePadding;

    Image image(width, height);
    draw_heading(&image, kFigurePadding - 6, width, frame.texts);
    draw_legend(&image, kFigurePadding, kFigurePadding - 6 + heading, frame.bar, frame.items);
    for (int y = 0; y < cells.rows; ++y)
        for (int x = 0; x < cells.columns; ++x)
            frame.paint(image, left + x * cells.cell_width, top + y * cells.cell_height, x, y);
    image.outline(left - 1, top - 1, cells.width() + 2, cells.height() + 2, kLine);
    draw_row_labels(image, rows, left, top, cells);
    draw_column_labels(image, columns, left, top + cells.height(), cells);
    // The label of a low matrix starts at its top and runs on below it rather than into the legend.
    const float row_label =
        std::max(static_cast<float>(cells.height()) / 2, text_width(frame.row_axis.label, kBody) / 2 - 4);
    image.text(static_cast<float>(kFigurePadding + 8), static_cast<float>(top) + row_label,
               frame.row_axis.label, upward(aligned(kBody, TextAlign::center)));
    image.text(static_cast<float>(left + cells.width() / 2), static_cast<float>(axis_bottom + 10),
               frame.column_axis.label, aligned(kBody, TextAlign::center));
    draw_caption(&image, caption_y, width, frame.texts.caption);
    return image;
}

}  // namespace keyhole
