/// Maps a matrix of cells to its canvas by pan and zoom. Plain values; window thread; knows neither GL nor
/// ImGui. Canvas coordinates are pixels from its top left corner, y down. Cell coordinates are (position,
/// row); cell (p, i) covers [p, p + 1) x [i, i + 1).
#pragma once

namespace keyhole {

struct CanvasPoint {
    double x = 0;
    double y = 0;
};

struct HeatView {
    double left = 0;  ///< cell coordinate at the canvas' left edge
    double top = 0;
    double cell_width = 1;  ///< pixels
    double cell_height = 1;
    bool fitted = true;  ///< refits as the matrix grows, until the user pans or zooms

    static constexpr double kMinCell = 1.0 / 256;  ///< smallest cell in pixels
    static constexpr double kMaxCell = 160;

    /// Stretches all columns of the rows from first_row on over the canvas.
    void fit(int n_columns, int n_rows, double canvas_width, double canvas_height, int first_row = 0);
    /// Enlarges the cell under the point by the factor and keeps it under the point.
    void zoom_at(CanvasPoint point, double factor);
    void pan(double dx_pixels, double dy_pixels);
    /// Centres a cell.
    void center_on(double position, double row, double canvas_width, double canvas_height);
    /// Keeps at least a part of the matrix on the canvas.
    void keep_in_sight(int n_columns, int n_rows, double canvas_width, double canvas_height);

    CanvasPoint cell_at(CanvasPoint point) const;
    CanvasPoint pixel_of(CanvasPoint cell) const;
    /// Returns the pyramid level at which no cell is skipped if each pixel shows one block: the smallest
    /// with 2^level >= cells per pixel on both axes.
    int level() const;

    bool operator==(const HeatView&) const = default;
};

}  // namespace keyhole
