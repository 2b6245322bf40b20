#include "app/view/heat_view.h"

#include <algorithm>

namespace keyhole {

void HeatView::fit(int n_columns, int n_rows, double canvas_width, double canvas_height, int first_row) {
    left = 0;
    top = first_row;
    cell_width = std::clamp(canvas_width / std::max(n_columns, 1), kMinCell, kMaxCell);
    cell_height = std::clamp(canvas_height / std::max(n_rows - first_row, 1), kMinCell, kMaxCell);
    fitted = true;
}

void HeatView::zoom_at(CanvasPoint point, double factor) {
    // One factor for both axes, so that the limit of one axis keeps the shape.
    factor = std::min({factor, kMaxCell / cell_width, kMaxCell / cell_height});
    factor = std::max({factor, kMinCell / cell_width, kMinCell / cell_height});
    const CanvasPoint cell = cell_at(point);
    cell_width *= factor;
    cell_height *= factor;
    left = cell.x - point.x / cell_width;
    top = cell.y - point.y / cell_height;
    fitted = false;
}

void HeatView::pan(double dx_pixels, double dy_pixels) {
    left -= dx_pixels / cell_width;
    top -= dy_pixels / cell_height;
    fitted = false;
}

void HeatView::center_on(double position, double row, double canvas_width, double canvas_height) {
    left = position + 0.5 - canvas_width / cell_width / 2;
    top = row + 0.5 - canvas_height / cell_height / 2;
    fitted = false;
}

void HeatView::keep_in_sight(int n_columns, int n_rows, double canvas_width, double canvas_height) {
    const double wide = canvas_width / cell_width;
    const double high = canvas_height / cell_height;
    left = std::clamp(left, -0.75 * wide, n_columns - 0.25 * std::min(wide, double(n_columns)));
    top = std::clamp(top, -0.75 * high, n_rows - 0.25 * std::min(high, double(n_rows)));
}

CanvasPoint HeatView::cell_at(CanvasPoint point) const {
    return {left + point.x / cell_width, top + point.y / cell_height};
}

CanvasPoint HeatView::pixel_of(CanvasPoint cell) const {
    return {(cell.x - left) * cell_width, (cell.y - top) * cell_height};
}

int HeatView::level() const {
    const double cells_per_pixel = std::max(1 / cell_width, 1 / cell_height);
    int level = 0;
    // Some slack, since 1 / (1 / x) is not always x.
    while (double(1 << level) < cells_per_pixel * (1 - 1e-9) && level < 20) ++level;
    return level;
}

}  // namespace keyhole
