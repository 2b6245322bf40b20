#include "engine/figure/heatmap.h"

#include "engine/base/error.h"
#include "engine/base/index.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace keyhole {

namespace {

std::vector<LegendItem> state_items(const std::vector<CellState>& states) {
    const auto has = [&](CellState state) {
        return std::find(states.begin(), states.end(), state) != states.end();
    };
    std::vector<LegendItem> items;
    if (has(CellState::evicted))
        items.push_back(
            {"evicted", [](Image& image, int x, int y, int w, int h) { image.fill_hatch(x, y, w, h); }});
    if (has(CellState::future))
        items.push_back({"not yet there", [](Image& image, int x, int y, int w, int h) {
                             image.fill(x, y, w, h, kFutureColor);
                         }});
    return items;
}

LegendItem swatch(std::string text, Rgb8 color) {
    return {std::move(text),
            [color](Image& image, int x, int y, int w, int h) { image.fill(x, y, w, h, color); }};
}

/// Appends legend items for the colours outside of the map that occur in the figure.
void append_value_items(std::vector<LegendItem>& items, const Plane& values,
                        const std::vector<MaskCell>& masks, const ColorScale& scale) {
    const ScaleTerms terms = scale_terms(scale);
    bool none = false, missing = false, above = false, below = false;
    for (std::size_t i = 0; i < values.values.size(); ++i) {
        const float v = values.values[i];
        if (!masks.empty() && masks[i].future) continue;
        if (std::isnan(v))
            missing = missing || masks.empty() || !masks[i].any_evicted;
        else if (std::isinf(v))
            none = true;
        else if (scale.marks_clips)
            (clip_of(terms, v) > 0 ? above : below) |= clip_of(terms, v) != 0;
    }
    if (none && scale.marks_nan) items.push_back(swatch("NaN or infinite", kNanColor));
    if (above) items.push_back(swatch("above the range", kAboveColor));
    if (below) items.push_back(swatch("below the range", kBelowColor));
    if (missing || (none && !scale.marks_nan)) items.push_back(swatch("no value", kMissingColor));
}

void append_sentence(std::string& text, const std::string& sentence) {
    if (!text.empty()) text += ' ';
    text += sentence;
}

std::string_view reduction_words(Reduction reduction) {
    return reduction == Reduction::max ? "the largest value" : "the value of largest magnitude";
}

/// Sets cells without a value to NaN, so that reductions skip them.
Plane with_holes(Plane values, const std::vector<CellState>& states) {
    for (std::size_t i = 0; i < states.size(); ++i)
        if (states[i] == CellState::evicted || states[i] == CellState::future)
            values.values[i] = std::numeric_limits<float>::quiet_NaN();
    return values;
}

Rgb8 mix(Rgb8 a, Rgb8 b, float share) {
    const auto part = [&](std::uint8_t x, std::uint8_t y) {
        return static_cast<std::uint8_t>(
            std::lround(static_cast<float>(x) + (static_cast<float>(y) - static_cast<float>(x)) * share));
    };
    return {part(a.r, b.r), part(a.g, b.g), part(a.b, b.b)};
}

/// Paints one cell: future, hatch, missing, or its value.
void paint_value(Image& image, int x, int y, int w, int h, float value, const MaskCell* mask,
                 const ColorScale& scale) {
    if (mask && mask->future)
        image.fill(x, y, w, h, kFutureColor);
    else if (mask && std::isnan(value) && mask->any_evicted)
        image.fill_hatch(x, y, w, h);
    else if (std::isnan(value))
        image.fill(x, y, w, h, kMissingColor);
    else
        image.fill(x, y, w, h, color_of(scale, value));
}

/// Paints the kept share as colour, and a hatch where nothing is kept. In a reduced figure, a lighter
/// colour shows single evicted cells.
void paint_mask(Image& image, int x, int y, int w, int h, const MaskCell& cell) {
    if (cell.future)
        image.fill(x, y, w, h, kFutureColor);
    else if (cell.kept_fraction == 0)
        image.fill_hatch(x, y, w, h);
    else
        image.fill(x, y, w, h,
                   cell.any_last_seen ? kLastSeenColor : mix(kEvictedColor, kKeptColor, cell.kept_fraction));
}

/// Returns the source cells of thumbnail pixel i: at least one.
std::pair<int, int> source_range(int i, int n_pixels, int n_cells) {
    const auto begin = static_cast<int>(std::int64_t{i} * n_cells / n_pixels);
    const auto end = static_cast<int>((std::int64_t{i + 1} * n_cells + n_pixels - 1) / n_pixels);
    return {begin, std::max(begin + 1, n_cells >= n_pixels ? end : begin + 1)};
}

struct ThumbnailSize {
    int width = 0, height = 0;
};

/// Draws one thumbnail: every pixel shows the reduction of the cells that it covers.
void draw_thumbnail(Image& image, int left, int top, ThumbnailSize size, const AtlasCell& cell,
                    const AtlasFigure& figure) {
    const Plane values = with_holes(cell.values, cell.states);
    for (int y = 0; y < size.height; ++y) {
        const auto [v0, v1] = source_range(y, size.height, values.height);
        for (int x = 0; x < size.width; ++x) {
            const auto [u0, u1] = source_range(x, size.width, values.width);
            Plane block(u1 - u0, v1 - v0);
            MaskCell mask;
            mask.future = !cell.states.empty();
            for (int v = v0; v < v1; ++v)
                for (int u = u0; u < u1; ++u) {
                    block.at(u - u0, v - v0) = values.at(u, v);
                    if (cell.states.empty()) continue;
                    const CellState state = cell.states[to_index(v) * to_index(values.width) + to_index(u)];
                    mask.future = mask.future && state == CellState::future;
                    mask.any_evicted = mask.any_evicted || state == CellState::evicted;
                }
            const float value =
                reduce_by(block, std::max(block.width, block.height), figure.reduction).at(0, 0);
            paint_value(image, left + x, top + y, 1, 1, value, &mask, figure.scale);
        }
    }
}

}  // namespace

Image draw_heatmap(const HeatmapFigure& figure) {
    const Plane& values = figure.values;
    KH_ASSERT(figure.states.empty() || figure.states.size() == values.values.size());
    MatrixFrame frame{
        figure.texts, figure.row_axis, figure.column_axis, {}, nullptr, state_items(figure.states), {}};
    frame.cells = layout_cells(values.width, values.height, figure.size, figure.row_axis);
    const int factor = frame.cells.factor;
    if (factor > 1)
        append_sentence(frame.texts.caption, fmt::format("Reduced: each cell shows {} of {} x {} cells.",
                                                         reduction_words(figure.reduction), factor, factor));
    if (figure.scale.gamma != 1)
        append_sentence(frame.texts.caption, fmt::format("Colours: gamma {:.2g}.", figure.scale.gamma));
    const LegendBar bar{figure.value_label, figure.scale};
    frame.bar = &bar;
    const Plane reduced = reduce_by(with_holes(values, figure.states), factor, figure.reduction);
    const std::vector<MaskCell> masks = figure.states.empty()
                                            ? std::vector<MaskCell>{}
                                            : reduce_mask(figure.states, values.width, values.height, factor);
    append_value_items(frame.items, reduced, masks, figure.scale);
    frame.paint = [&](Image& image, int x, int y, int width, int height, int column, int row) {
        const auto i = to_index(row) * to_index(reduced.width) + to_index(column);
        paint_value(image, x, y, width, height, reduced.values[i], masks.empty() ? nullptr : &masks[i],
                    figure.scale);
    };
    return draw_matrix(frame);
}

Image draw_mask(const MaskFigure& figure) {
    KH_ASSERT(figure.states.size() == to_index(figure.n_columns) * to_index(figure.n_rows));
    MatrixFrame frame{figure.texts, figure.row_axis, figure.column_axis, {}, nullptr, {}, {}};
    frame.cells = layout_cells(figure.n_columns, figure.n_rows, figure.size, figure.row_axis);
    const int factor = frame.cells.factor;
    if (factor > 1)
        append_sentence(frame.texts.caption,
                        fmt::format("Reduced: each cell stands for {0} x {0} cells; the darker, the more of "
                                    "them are kept; hatched where "
                                    "none is, orange where one was seen for the last time.",
                                    factor));
    frame.items = {swatch("attended, kept", kKeptColor),
                   swatch("attended for the last time", kLastSeenColor)};
    for (LegendItem& item : state_items({CellState::evicted, CellState::future}))
        frame.items.push_back(std::move(item));
    const std::vector<MaskCell> masks = reduce_mask(figure.states, figure.n_columns, figure.n_rows, factor);
    frame.paint = [&](Image& image, int x, int y, int width, int height, int column, int row) {
        paint_mask(image, x, y, width, height,
                   masks[to_index(row) * to_index(frame.cells.columns) + to_index(column)]);
    };
    return draw_matrix(frame);
}

Image draw_atlas(const AtlasFigure& figure) {
    constexpr int kGap = 8, kLeft = 44, kLabels = 22, kLargest = 220, kSmallest = 16;
    constexpr Rgb8 kLine{150, 150, 156};
    const auto n_layers = static_cast<int>(figure.layers.size()),
               n_heads = static_cast<int>(figure.heads.size());
    KH_ASSERT(n_layers > 0 && n_heads > 0);
    AtlasCell cell = figure.cell(figure.layers[0], figure.heads[0]);
    ThumbnailSize size;
    size.width =
        std::clamp((figure.max_width - kLeft - 2 * kFigurePadding) / n_heads - kGap, kSmallest, kLargest);
    const double aspect = static_cast<double>(cell.values.height) / std::max(cell.values.width, 1);
    size.height = std::clamp(static_cast<int>(std::lround(size.width * aspect)),
                             std::min(size.width, std::max(kSmallest, size.width / 2)), size.width);

    FigureTexts texts = figure.texts;
    if (cell.values.width > size.width || cell.values.height > size.height)
        append_sentence(
            texts.caption,
            fmt::format(
                "Reduced: each pixel shows {} of the cells it covers ({} x {} rows and positions on {} x {} "
                "pixels).",
                reduction_words(figure.reduction), cell.values.height, cell.values.width, size.height,
                size.width));
    const LegendBar bar{figure.value_label, figure.scale};
    // Other thumbnails may have evicted cells even if the first has none.
    std::vector<LegendItem> items = cell.states.empty()
                                        ? std::vector<LegendItem>{}
                                        : state_items({CellState::evicted, CellState::future});
    if (figure.has_not_finite) items.push_back(swatch("NaN or infinite", kNanColor));
    const int left = kFigurePadding + kLeft;
    const int width = std::max(left + n_heads * (size.width + kGap) + kFigurePadding,
                               legend_width(&bar, items) + 2 * kFigurePadding);
    const int heading = draw_heading(nullptr, 0, width, texts);
    const int top = kFigurePadding - 6 + heading + draw_legend(nullptr, 0, 0, &bar, items) + kLabels;
    const int caption_y = top + n_layers * (size.height + kGap) + 6;
    Image image(width, caption_y + draw_caption(nullptr, 0, width, texts.caption) + kFigurePadding);

    draw_heading(&image, kFigurePadding - 6, width, texts);
    draw_legend(&image, kFigurePadding, kFigurePadding - 6 + heading, &bar, items);
    draw_caption(&image, caption_y, width, texts.caption);
    TextStyle style{13};
    style.align = TextAlign::center;
    const int every = std::max(1, 34 / (size.width + kGap));  // labels of small thumbnails would touch
    for (int h = 0; h < n_heads; h += every)
        image.text(static_cast<float>(left + h * (size.width + kGap) + size.width / 2),
                   static_cast<float>(top - 8), fmt::format("H{}", figure.heads[to_index(h)]), style);
    style.align = TextAlign::right;
    for (int l = 0; l < n_layers; ++l) {
        const int y = top + l * (size.height + kGap);
        image.text(static_cast<float>(left - 8), static_cast<float>(y + size.height / 2 + 5),
                   fmt::format("L{}", figure.layers[to_index(l)]), style);
        for (int h = 0; h < n_heads; ++h) {
            const int x = left + h * (size.width + kGap);
            if (l + h > 0) cell = figure.cell(figure.layers[to_index(l)], figure.heads[to_index(h)]);
            draw_thumbnail(image, x, y, size, cell, figure);
            image.outline(x - 1, y - 1, size.width + 2, size.height + 2, kLine);
        }
    }
    return image;
}

}  // namespace keyhole
