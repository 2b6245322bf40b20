/// The common parts of matrix figures: title, axes with token texts, legend, caption, and the sizes of
/// cells. Used by heatmap.cpp only; any thread. Knows no attention.
#pragma once

#include "engine/figure/drawing.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace keyhole {

/// One axis of a matrix figure. Index i of the matrix is row or position first + i of the text.
struct MatrixAxis {
    std::string label;
    int first = 0;
    std::vector<std::string> tokens;  ///< [n] text of each, or empty
};

/// Size of a matrix figure in pixels; a matrix that does not fit is reduced.
struct FigureSize {
    int max_width = 1400;  ///< of the matrix alone
    int max_height = 1100;
    /// of the whole picture, with text in proportion; 0: what cells of whole pixels need
    int width = 0;
    double cell_aspect = 1;  ///< height of a cell over its width; used with `width`
    PrintForm print = {};
    int plot_height = 0;           ///< of the matrix alone, if the width decides its cells; 0: by cell_aspect
    bool has_side_column = false;  ///< there is room for MatrixFrame::side
};
/// The width of a picture with text of normal size, where its height or its font is asked for.
inline constexpr int kUsualFigureWidth = 1100;

/// Columns of a matrix that a picture marks, and what they are: "“4821”, positions 80 to 83".
struct MarkedColumns {
    int first = 0, last = -1;  ///< in the matrix; none: an empty mark
    std::string name = {};
    bool operator==(const MarkedColumns&) const = default;
};

/// How a matrix fits a picture.
struct CellLayout {
    int factor = 1;                       ///< this many rows and columns become one cell
    int columns = 0, rows = 0;            ///< after reduction
    int cell_width = 1, cell_height = 1;  ///< pixels
    int plot_width = 0, plot_height = 0;  ///< pixels that all cells share exactly; 0: cells of whole pixels
    double scale = 1;                     ///< of text and margins
    int left = 0;                         ///< x of the plot in the picture; 0: from the width of the labels
    int side = 0;                         ///< pixels between the labels of rows and the plot: a column
    int width() const { return x(columns); }
    int height() const { return y(rows); }
    /// Return the edges of cells, relative to the plot.
    int x(int column) const { return edge(column, columns, cell_width, plot_width); }
    int y(int row) const { return edge(row, rows, cell_height, plot_height); }

  private:
    static int edge(int i, int n, int cell, int plot) {
        return plot == 0 ? i * cell : static_cast<int>(std::int64_t{i} * plot / (n > 0 ? n : 1));
    }
};

/// Returns the layout with the largest cells, up to 12 pixels, that fit the given size; reduces the matrix
/// when cells of one pixel do not fit. Cells are square unless the matrix is much wider than high.
CellLayout layout_cells(int n_columns, int n_rows, int max_width, int max_height);
/// The same for a picture of the requested `size` with its axes.
CellLayout layout_cells(int n_columns, int n_rows, const FigureSize& size, const MatrixAxis& row_axis);

/// A colour sample in the legend, with its text.
struct LegendItem {
    std::string text;
    CellFill fill;
};

/// The colour bar of the legend.
struct LegendBar {
    std::string label;
    ColorScale scale;
};

struct MatrixFrame {
    FigureTexts texts;
    MatrixAxis row_axis, column_axis;
    CellLayout cells;
    std::optional<LegendBar> bar;
    std::vector<LegendItem> items;
    Background background = Background::light;
    /// Returns what fills cell (column, row) of the reduced matrix.
    std::function<CellFill(int column, int row)> cell;
    PrintForm print = {};
    MarkedColumns marked = {};
    bool has_legend = true;
    std::string side_name = {};  ///< of a column on the left that is no key position
    /// Returns what fills its cell in a row of the reduced matrix; empty: there is no such column.
    std::function<CellFill(int row)> side = {};
};

/// Draws the frame without regard to the height that it is asked for.
Drawing matrix_drawing(MatrixFrame frame);
/// Calls draw(size) with heights of the plot until the drawing has the height that `size` asks for. Throws
/// Error(wrong_use) if the words alone are higher.
Drawing drawing_of_height(FigureSize size, const std::function<Drawing(const FigureSize&)>& draw);

// Parts, for figures with another middle (the atlas).
inline constexpr int kFigurePadding = 18;
/// Return the height in pixels; draw from y on when `canvas` is given.
int draw_heading(Canvas* canvas, int y, int width, const FigureTexts& texts, double scale = 1);
/// width: that of the picture; items wrap to a new line at its end. 0: they do not wrap.
int draw_legend(Canvas* canvas, int x, int y, const LegendBar* bar, const std::vector<LegendItem>& items,
                double scale = 1, int width = 0);
int draw_caption(Canvas* canvas, int y, int width, const std::string& caption, double scale = 1);
/// Returns the width of the legend in pixels.
int legend_width(const LegendBar* bar, const std::vector<LegendItem>& items);
/// Returns the size of text and margins of a picture with a requested width.
double text_scale(int width, const PrintForm& print = {});
/// Bounds the memory of a picture with many more rows than columns.
inline constexpr int kHighestPlot = 20'000;

}  // namespace keyhole
