/// What matrix figures share: title, axes with token texts, caption, and the sizes of cells. Used by
/// heatmap.cpp alone.
#pragma once

#include "engine/figure/image.h"

#include <cstdint>
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

/// Pixels of a matrix figure; what does not fit is reduced.
struct FigureSize {
    int max_width = 1400;  ///< of the matrix itself
    int max_height = 1100;
    int width = 0;           ///< of the whole picture, with text in proportion; 0: as whole pixels a cell ask
    double cell_aspect = 1;  ///< height of a cell over its width, where `width` is given
};

/// How a matrix fits a picture.
struct CellLayout {
    int factor = 1;                       ///< this many rows and columns become one cell
    int columns = 0, rows = 0;            ///< after reduction
    int cell_width = 1, cell_height = 1;  ///< pixels
    int plot_width = 0, plot_height = 0;  ///< that all cells share, to the pixel; 0: cells of whole pixels
    double scale = 1;                     ///< of text and margins
    int left = 0;                         ///< of the plot in the picture; 0: what the labels take
    int width() const { return x(columns); }
    int height() const { return y(rows); }
    /// Edges of cells, from the plot's own.
    int x(int column) const { return edge(column, columns, cell_width, plot_width); }
    int y(int row) const { return edge(row, rows, cell_height, plot_height); }

  private:
    static int edge(int i, int n, int cell, int plot) {
        return plot == 0 ? i * cell : static_cast<int>(std::int64_t{i} * plot / (n > 0 ? n : 1));
    }
};

/// The largest cells up to 12 pixels that keep within the given size; reduces when cells of one pixel do not.
/// Cells are square unless the matrix is much wider than high.
CellLayout layout_cells(int n_columns, int n_rows, int max_width, int max_height);
/// The same for a picture as `size` asks for it, with its axes.
CellLayout layout_cells(int n_columns, int n_rows, const FigureSize& size, const MatrixAxis& row_axis);

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
    std::function<void(Image&, int x, int y, int width, int height, int column, int row)> paint;
};

Image draw_matrix(const MatrixFrame& frame);

// Parts, for figures with another middle.
inline constexpr int kFigurePadding = 18;
/// Pixels that heading and legend take below y; draws when `image` is given.
int draw_heading(Image* image, int y, int width, const FigureTexts& texts, double scale = 1);
/// width: of the picture, at whose end items go on in another line; 0: they do not.
int draw_legend(Image* image, int x, int y, const LegendBar* bar, const std::vector<LegendItem>& items,
                double scale = 1, int width = 0);
int draw_caption(Image* image, int y, int width, const std::string& caption, double scale = 1);
/// Width that the legend takes.
int legend_width(const LegendBar* bar, const std::vector<LegendItem>& items);

}  // namespace keyhole
