/// The focused view as a figure for a file, drawn by engine/figure from the data: exact pixels, no GL. Window
/// thread.
#pragma once

#include "app/view/view_state.h"
#include "engine/figure/image.h"
#include "engine/trace/run_history.h"

#include <optional>

namespace keyhole {

/// Cells of a matrix; both ends included.
struct CellRect {
    int first_row = 0, last_row = -1, first_position = 0, last_position = -1;
    bool operator==(const CellRect&) const = default;
};
/// The cells that a canvas of a size in pixels shows, of the rows and positions up to last_row. Without a canvas, or with none of the
/// cells on it: all.
CellRect shown_cells(const HeatView& view, CanvasPoint canvas, int last_row);

/// How a picture differs from the whole matrix in cells of whole pixels.
struct PictureOptions {
    static constexpr int kLeastWidth = 320, kMostWidth = 12'000;
    int width = 0;                   ///< pixels of the picture, text in proportion; 0: as the cells ask
    std::optional<CellRect> shown;   ///< of the matrix; empty: all up to the shown row
    double cell_aspect = 1;          ///< height of a cell over its width, where a width is given
    int stride = 1, dense_from = 0;  ///< which rows the recorder kept
};

/// Rows up to the shown one of the focused head in the present mode. lane: index into history.lanes().
Image focus_picture(const RunHistory& history, int lane, const ViewState& view, const ColorScale& scale,
                    const PictureOptions& request = {});

/// The same of what lane a has and lane b has not: see difference_values.
Image difference_picture(const RunHistory& history, int a, int b, const ViewState& view,
                         const ColorScale& scale, const PictureOptions& request = {});

}  // namespace keyhole
