/// What matrix figures share: title, axes with token texts, caption, and the sizes of cells. Used by
/// heatmap.cpp alone.
#pragma once

#include "engine/figure/image.h"

#include <functional>
#include <string>
#include <vector>

namespace keyhole {

/// One axis of a matrix figure. Index i of the matrix is row or position first + i of the text.
struct MatrixAxis {
    std::string label;
    int first = 0;
    std::vector<std::string> tokens;  ///< [n] text of each, or empty
};

struct FigureTexts {
    std::string title;     ///< what is shown
    std::string subtitle;  ///< of what: model, lane spec
    std::string caption;   ///< scale, units; reductions are appended
};

/// How a matrix fits a picture.
struct CellLayout {
    int factor = 1;                       ///< this many rows and columns become one cell
    int columns = 0, rows = 0;            ///< after reduction
    int cell_width = 1, cell_height = 1;  ///< pixels
    int width() const { return columns * cell_width; }
    int height() const { return rows * cell_height; }
};

/// The largest cells up to 12 pixels that keep within the given size; reduces when cells of one pixel do not.
/// Cells are square unless the matrix is much wider than high.
CellLayout layout_cells(int n_columns, int n_rows, int max_width, int max_height);

/// A swatch of the legend.
struct LegendItem {
    std::string text;
    std::function<void(Image&, int x, int y, int width, int height)> paint;
};

/// Colour bar of the legend, or none.
struct LegendBar {
    std::string label;
    ColorScale scale;
};

struct MatrixFrame {
    FigureTexts texts;
    MatrixAxis row_axis, column_axis;
    CellLayout cells;
    const LegendBar* bar = nullptr;
    std::vector<LegendItem> items;
    /// Paints cell (column, row) of the reduced matrix.
    std::function<void(Image&, int x, int y, int column, int row)> paint;
};

Image draw_matrix(const MatrixFrame& frame);

// Parts, for figures with another middle.
inline constexpr int kFigurePadding = 18;
/// Pixels that heading and legend take below y; draws when `image` is given.
int draw_heading(Image* image, int y, int width, const FigureTexts& texts);
int draw_legend(Image* image, int x, int y, const LegendBar* bar, const std::vector<LegendItem>& items);
int draw_caption(Image* image, int y, int width, const std::string& caption);
/// Width that the legend takes.
int legend_width(const LegendBar* bar, const std::vector<LegendItem>& items);

}  // namespace keyhole
