/// Draws the focused view as a figure for a file. engine/figure draws it from the data: exact pixels or
/// vectors, no GL.
/// Window thread.
#pragma once

#include "app/view/view_state.h"
#include "engine/figure/drawing.h"
#include "engine/trace/run_history.h"

#include <optional>
#include <vector>

namespace keyhole {

/// A rectangle of cells of a matrix. Both ends are included.
struct CellRect {
    int first_row = 0, last_row = -1, first_position = 0, last_position = -1;
    bool operator==(const CellRect&) const = default;
};
/// Returns the cells that a canvas of this size in pixels shows, among the rows and positions up to
/// last_row. Returns all of them if there is no canvas, or if it shows none of the cells.
CellRect shown_cells(const HeatView& view, CanvasPoint canvas, int last_row);

/// Options of a picture. By default it shows the whole matrix with cells of whole pixels.
struct PictureOptions {
    int width = 0;                   ///< of the picture, in pixels; text scales with it; 0: from the cells
    std::optional<CellRect> shown;   ///< part of the matrix; empty: all up to the shown row
    double cell_aspect = 1;          ///< height of a cell divided by its width, if `width` is given
    int stride = 1, dense_from = 0;  ///< which rows the recorder stored
    Background background = Background::light;  ///< of the picture, whatever the window's
    PrintForm print = {};
    std::vector<int> layers = {}, heads = {};  ///< of the atlas; empty: all
    // Of a heat map that is part of a larger picture.
    bool has_legend = true;
    int plot_height = 0;                      ///< see FigureSize
    std::vector<std::string> row_words = {};  ///< of its rows, in place of the tokens that they read
};

/// Draws the focused head in the current mode, up to the shown row. lane: index into history.lanes().
Drawing focus_picture(const RunHistory& history, int lane, const ViewState& view, const ColorScale& scale,
                      const PictureOptions& request = {});

/// Draws the difference of lane a minus lane b: see difference_values. The scale's map should suit the
/// background.
Drawing difference_picture(const RunHistory& history, int a, int b, const ViewState& view,
                           const ColorScale& scale, const PictureOptions& request = {});

}  // namespace keyhole
