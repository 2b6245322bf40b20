#include "engine/figure/heatmap.h"

#include "engine/base/error.h"
#include "engine/base/index.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

namespace keyhole {

namespace {

constexpr CellFill kHatched{{}, true};

std::vector<LegendItem> state_items(const std::vector<CellState>& states, const CellColors& colors) {
    const auto has = [&](CellState state) {
        return std::find(states.begin(), states.end(), state) != states.end();
    };
    std::vector<LegendItem> items;
    if (has(CellState::hidden)) items.push_back({"stored, not attended", {colors.hidden}});
    if (has(CellState::evicted)) items.push_back({"evicted", kHatched});
    if (has(CellState::future)) items.push_back({"not yet there", {colors.future}});
    return items;
}

/// Appends legend items for the colours outside of the map that occur in the figure.
void append_value_items(std::vector<LegendItem>& items, const Plane& values,
                        const std::vector<MaskCell>& masks, const ColorScale& scale,
                        const CellColors& colors) {
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
    if (none && scale.marks_nan) items.push_back({"NaN or infinite", {kNanColor}});
    if (above) items.push_back({"above the range", {kAboveColor}});
    if (below) items.push_back({"below the range", {kBelowColor}});
    if (missing || (none && !scale.marks_nan)) items.push_back({"not recorded", {colors.missing}});
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

/// Returns what fills one cell: future, hatch, missing, or its value.
CellFill value_fill(float value, const MaskCell* mask, const ColorScale& scale, const CellColors& colors) {
    if (mask && mask->future) return {colors.future};
    if (mask && std::isnan(value) && mask->any_evicted) return kHatched;
    if (std::isnan(value) || (std::isinf(value) && !scale.marks_nan)) return {colors.missing};
    return {color_of(scale, value)};
}

/// Returns the kept share as colour, and a hatch where nothing is kept. In a reduced figure, a lighter
/// colour shows single evicted cells.
CellFill mask_fill(const MaskCell& cell, const CellColors& colors) {
    if (cell.future) return {colors.future};
    if (cell.kept_fraction == 0) return cell.any_hidden ? CellFill{colors.hidden} : kHatched;
    return {cell.any_last_seen ? colors.last_seen : mix(colors.evicted, colors.kept, cell.kept_fraction)};
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
void draw_thumbnail(CellPainter& painter, ThumbnailSize size, const AtlasCell& cell,
                    const AtlasFigure& figure, const CellColors& colors) {
    const Plane values = with_holes(cell.values, cell.states);
    for (int y = 0; y < size.height; ++y) {
        const auto [v0, v1] = source_range(y, size.height, values.height);
        for (int x = 0; x < size.width; ++x) {
            const auto [u0, u1] = source_range(x, size.width, values.width);
            float value = std::numeric_limits<float>::quiet_NaN();
            MaskCell mask;
            mask.future = !cell.states.empty();
            for (int v = v0; v < v1; ++v)
                for (int u = u0; u < u1; ++u) {
                    value = combine(value, values.at(u, v), figure.reduction);
                    if (cell.states.empty()) continue;
                    const CellState state = cell.states[to_index(v) * to_index(values.width) + to_index(u)];
                    mask.future = mask.future && state == CellState::future;
                    mask.any_evicted = mask.any_evicted || state == CellState::evicted;
                }
            painter.fill(x, y, 1, 1, value_fill(value, &mask, figure.scale, colors));
        }
    }
}

/// Returns the colour of a named value in place of that on the scale.
CellFill named_fill(const std::vector<NamedValue>& names, float value, CellFill fill) {
    for (const NamedValue& named : names)
        if (named.value == value && !fill.hatched) return {named.color};
    return fill;
}

/// Where the parts of an atlas lie, in pixels.
struct AtlasLayout {
    double scale = 1;  ///< of text and margins
    int gap = 8, left = 0;
    int width = 0;  ///< of the picture, where it is asked for
    ThumbnailSize thumbnail;
    int px(int pixels) const { return static_cast<int>(std::lround(pixels * scale)); }
};

/// high: of a thumbnail; 0: by the shape of its matrix.
AtlasLayout layout_atlas(const AtlasFigure& figure, const Plane& first, int high) {
    constexpr int kGap = 8, kLeft = 44, kLargest = 220, kSmallest = 16;
    const auto n_layers = static_cast<int>(figure.layers.size()),
               n_heads = static_cast<int>(figure.heads.size());
    const double aspect = static_cast<double>(first.height) / std::max(first.width, 1);
    AtlasLayout layout;
    ThumbnailSize& size = layout.thumbnail;
    const auto height_of = [&](int smallest) {
        return std::clamp(static_cast<int>(std::lround(size.width * aspect)),
                          std::min(size.width, std::max(smallest, size.width / 2)), size.width);
    };
    if (figure.width <= 0 && !figure.print.is_sized()) {
        layout.left = kFigurePadding + kLeft;
        size.width =
            std::clamp((figure.max_width - kLeft - 2 * kFigurePadding) / n_heads - kGap, kSmallest, kLargest);
        size.height = height_of(kSmallest);
        return layout;
    }
    const int width = figure.width > 0 ? figure.width : kUsualFigureWidth;
    layout.scale = text_scale(width, figure.print);
    layout.left = layout.px(kFigurePadding + kLeft);
    const int room = (width - layout.left - layout.px(kFigurePadding)) / n_heads;  // of one
    layout.gap = std::clamp(room / 8, 1, layout.px(kGap));
    size.width = std::max(room - layout.gap, 1);
    size.height = std::clamp(height_of(1), 1, std::max(kHighestPlot / n_layers - layout.gap, 1));
    if (high > 0) size.height = high;
    layout.width =
        std::max(width, layout.left + n_heads * (size.width + layout.gap) + layout.px(kFigurePadding));
    return layout;
}

/// Returns the column's values by row of the reduced matrix, the largest of each.
std::vector<float> reduced_side(const SideColumn& side, int factor) {
    std::vector<float> out((side.values.size() + to_index(factor) - 1) / to_index(factor),
                           std::numeric_limits<float>::quiet_NaN());
    for (std::size_t i = 0; i < side.values.size(); ++i)
        out[i / to_index(factor)] = combine(out[i / to_index(factor)], side.values[i], Reduction::max);
    return out;
}

Drawing draw_heatmap_at(const HeatmapFigure& figure, FigureSize place) {
    place.has_side_column = !figure.side.values.empty();
    KH_ASSERT(figure.side.values.size() <= to_index(figure.values.height));
    const Plane& values = figure.values;
    KH_ASSERT(figure.states.empty() || figure.states.size() == values.values.size());
    const CellColors colors = cell_colors(figure.background);
    MatrixFrame frame{figure.texts, figure.row_axis, figure.column_axis, {}, {}, {}, figure.background, {},
                      place.print,  figure.marked,   figure.has_legend};
    for (const NamedValue& named : figure.named_values) frame.items.push_back({named.name, {named.color}});
    for (LegendItem& item : state_items(figure.states, colors)) frame.items.push_back(std::move(item));
    frame.cells = layout_cells(values.width, values.height, place, figure.row_axis);
    const int factor = frame.cells.factor;
    if (factor > 1)
        append_sentence(frame.texts.caption, fmt::format("Reduced: each cell shows {} of {} x {} cells.",
                                                         reduction_words(figure.reduction), factor, factor));
    if (figure.scale.gamma != 1)
        append_sentence(frame.texts.caption, fmt::format("Colours: gamma {:.2g}.", figure.scale.gamma));
    if (figure.named_values.empty()) frame.bar = LegendBar{figure.value_label, figure.scale};
    Plane reduced = reduce_by(with_holes(values, figure.states), factor, figure.reduction);
    std::vector<MaskCell> masks = figure.states.empty()
                                      ? std::vector<MaskCell>{}
                                      : reduce_mask(figure.states, values.width, values.height, factor);
    append_value_items(frame.items, reduced, masks, figure.scale, colors);
    if (place.has_side_column) {
        frame.side_name = figure.side.name;
        frame.side = [values = reduced_side(figure.side, factor), scale = figure.scale, colors](int row) {
            const std::size_t i = to_index(row);
            return i < values.size() ? value_fill(values[i], nullptr, scale, colors)
                                     : CellFill{colors.future};
        };
    }
    frame.cell = [reduced = std::move(reduced), masks = std::move(masks), scale = figure.scale, colors,
                  names = figure.named_values](int column, int row) {
        const auto i = to_index(row) * to_index(reduced.width) + to_index(column);
        const MaskCell* mask = masks.empty() ? nullptr : &masks[i];
        const float value =
            mask && mask->future ? std::numeric_limits<float>::quiet_NaN() : reduced.values[i];
        return named_fill(names, value, value_fill(value, mask, scale, colors));
    };
    return matrix_drawing(std::move(frame));
}

Drawing draw_mask_at(const MaskFigure& figure, const FigureSize& place) {
    KH_ASSERT(figure.states.size() == to_index(figure.n_columns) * to_index(figure.n_rows));
    const CellColors colors = cell_colors(figure.background);
    MatrixFrame frame{figure.texts, figure.row_axis, figure.column_axis, {}, {}, {}, figure.background, {},
                      place.print,  figure.marked,   figure.has_legend};
    frame.cells = layout_cells(figure.n_columns, figure.n_rows, place, figure.row_axis);
    const int factor = frame.cells.factor;
    if (factor > 1)
        append_sentence(frame.texts.caption,
                        fmt::format("Reduced: each cell stands for {0} x {0} cells; the {1}, the more of "
                                    "them are kept; hatched where "
                                    "none is, orange where one was seen for the last time.",
                                    factor, figure.background == Background::light ? "darker" : "lighter"));
    frame.items = {{"attended, kept", {colors.kept}}, {"attended for the last time", {colors.last_seen}}};
    std::vector<CellState> listed = {CellState::evicted, CellState::future};
    if (std::find(figure.states.begin(), figure.states.end(), CellState::hidden) != figure.states.end())
        listed.push_back(CellState::hidden);
    for (LegendItem& item : state_items(listed, colors)) frame.items.push_back(std::move(item));
    frame.cell = [masks = reduce_mask(figure.states, figure.n_columns, figure.n_rows, factor), colors,
                  columns = frame.cells.columns](int column, int row) {
        return mask_fill(masks[to_index(row) * to_index(columns) + to_index(column)], colors);
    };
    return matrix_drawing(std::move(frame));
}

}  // namespace

Drawing heatmap_drawing(const HeatmapFigure& figure) {
    return drawing_of_height(figure.size,
                             [&](const FigureSize& place) { return draw_heatmap_at(figure, place); });
}

Image draw_heatmap(const HeatmapFigure& figure) {
    return heatmap_drawing(figure).image();
}

Drawing mask_drawing(const MaskFigure& figure) {
    return drawing_of_height(figure.size,
                             [&](const FigureSize& place) { return draw_mask_at(figure, place); });
}

Image draw_mask(const MaskFigure& figure) {
    return mask_drawing(figure).image();
}

namespace {

/// high: of a thumbnail; 0: by the shape of its matrix. around: gets the height of all but the thumbnails.
Drawing draw_atlas_at(AtlasFigure figure, int high, int& around) {
    constexpr int kLabels = 22;
    const auto n_layers = static_cast<int>(figure.layers.size()),
               n_heads = static_cast<int>(figure.heads.size());
    KH_ASSERT(n_layers > 0 && n_heads > 0);
    AtlasCell first = figure.cell(figure.layers[0], figure.heads[0]);
    const AtlasLayout layout = layout_atlas(figure, first.values, high);
    const ThumbnailSize size = layout.thumbnail;
    const int gap = layout.gap, left = layout.left, padding = layout.px(kFigurePadding);
    const CellColors colors = cell_colors(figure.background);

    FigureTexts texts = figure.texts;
    if (first.values.width > size.width || first.values.height > size.height)
        append_sentence(
            texts.caption,
            fmt::format(
                "Reduced: each pixel shows {} of the cells it covers ({} x {} rows and positions on {} x {} "
                "pixels).",
                reduction_words(figure.reduction), first.values.height, first.values.width, size.height,
                size.width));
    const LegendBar bar{figure.value_label, figure.scale};
    // Other thumbnails may have evicted cells even if the first has none.
    std::vector<LegendItem> items = first.states.empty()
                                        ? std::vector<LegendItem>{}
                                        : state_items({CellState::evicted, CellState::future}, colors);
    if (figure.has_not_finite) items.push_back({"NaN or infinite", {kNanColor}});
    const int grid_width = left + n_heads * (size.width + gap) + padding;
    const int width = layout.width > 0 ? layout.width
                                       : std::max(grid_width, legend_width(&bar, items) + 2 * kFigurePadding);
    const int legend_room = layout.width > 0 ? width : 0, heading_y = padding - layout.px(6);
    const FigureTexts said = texts;
    texts = figure.print.shown(texts);
    const int legend_y = heading_y + draw_heading(nullptr, 0, width, texts, layout.scale);
    const int top = legend_y + draw_legend(nullptr, padding, 0, &bar, items, layout.scale, legend_room) +
                    layout.px(kLabels);
    const int caption_y = top + n_layers * (size.height + gap) + layout.px(6);

    Drawing drawing;
    drawing.width = width;
    drawing.height = caption_y + draw_caption(nullptr, 0, width, texts.caption, layout.scale) + padding;
    drawing.background = figure.background;
    drawing.texts = said;
    around = drawing.height - n_layers * (size.height + gap);
    // The first thumbnail was made for the layout: it is not made again for the first picture.
    const auto made = std::make_shared<std::optional<AtlasCell>>(std::move(first));
    drawing.draw = [=, figure = std::move(figure), texts = std::move(texts),
                    items = std::move(items)](Canvas& canvas) {
        draw_heading(&canvas, heading_y, width, texts, layout.scale);
        draw_legend(&canvas, padding, legend_y, &bar, items, layout.scale, legend_room);
        draw_caption(&canvas, caption_y, width, texts.caption, layout.scale);
        TextStyle style{static_cast<float>(13 * layout.scale), canvas.colors().ink};
        style.align = TextAlign::center;
        const auto every = [&](int pixels, int step) {  // labels of small thumbnails would touch
            return std::max(1, layout.px(pixels) / step);
        };
        for (int h = 0; h < n_heads; h += every(34, size.width + gap))
            canvas.text(left + h * (size.width + gap) + size.width / 2, top - layout.px(8),
                        fmt::format("H{}", figure.heads[to_index(h)]), style);
        style.align = TextAlign::right;
        const int every_layer = layout.width > 0 ? every(16, size.height + gap) : 1;
        for (int l = 0; l < n_layers; ++l) {
            const int y = top + l * (size.height + gap);
            if (l % every_layer == 0)
                canvas.text(left - layout.px(8), y + size.height / 2 + layout.px(5),
                            fmt::format("L{}", figure.layers[to_index(l)]), style);
            for (int h = 0; h < n_heads; ++h) {
                const int x = left + h * (size.width + gap);
                const AtlasCell cell =
                    l + h == 0 && made->has_value()
                        ? std::move(**made)
                        : figure.cell(figure.layers[to_index(l)], figure.heads[to_index(h)]);
                if (l + h == 0) made->reset();
                canvas.cells(x, y, size.width, size.height, [&](CellPainter& painter) {
                    draw_thumbnail(painter, size, cell, figure, canvas.colors().cells);
                });
                canvas.outline(x - 1, y - 1, size.width + 2, size.height + 2, canvas.colors().line);
            }
        }
    };
    return drawing;
}

}  // namespace

Drawing atlas_drawing(AtlasFigure figure) {
    int around = 0;
    const int asked = figure.print.height, n_layers = static_cast<int>(figure.layers.size());
    if (asked <= 0) return draw_atlas_at(std::move(figure), 0, around);
    constexpr int kRounds = 3, kLeastRoom = 10;  // of a thumbnail with its gap
    int high = asked / (2 * n_layers) + 1;
    Drawing drawing = draw_atlas_at(figure, high, around);
    for (int round = 0; round < kRounds; ++round) {
        const int gap = layout_atlas(figure, Plane(1, 1), high).gap;
        const int room = (asked - around) / n_layers;
        if (room < gap + kLeastRoom)
            refuse_height(drawing.width, asked, around + n_layers * (gap + kLeastRoom));
        if (room - gap == high) break;
        high = room - gap;
        drawing = draw_atlas_at(figure, high, around);
    }
    drawing.height = asked;
    return drawing;
}

Image draw_atlas(const AtlasFigure& figure) {
    return atlas_drawing(figure).image();
}

}  // namespace keyhole
