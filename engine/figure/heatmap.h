/// Matrix figures: the heat map of one head, the kept-token mask of one KV head, and the atlas of all
/// layers and heads. Plain data in, a drawing or pixels out; any thread. Captions name every reduction.
#pragma once

#include "engine/figure/frame.h"
#include "engine/figure/reduce.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace keyhole {

struct NamedValue {
    float value = 0;
    std::string name;
    Rgb8 color;
};

/// A column on the left of a matrix that is no key position, coloured by the same scale.
struct SideColumn {
    std::string name = {};  ///< stands below it
    /// [row] NaN: not known; rows beyond its end are not yet there; none: there is no such column.
    std::vector<float> values = {};
};

struct HeatmapFigure {
    FigureTexts texts;
    /// rows: query rows; columns: key positions. NaN: no value; kNotFinite: NaN or infinity
    Plane values;
    std::vector<CellState> states;  ///< same shape, or empty: every cell carries a value
    MatrixAxis row_axis{"query position", 0, {}};
    MatrixAxis column_axis{"key position", 0, {}};
    ColorScale scale;
    std::string value_label = "attention";
    /// A few values with their names and colours, if there are no others: in place of scale and bar.
    std::vector<NamedValue> named_values = {};
    MarkedColumns marked = {};
    SideColumn side = {};
    Reduction reduction = Reduction::max;
    FigureSize size;
    Background background = Background::light;  ///< the scale's map should suit it
    bool has_legend = true;
};
Drawing heatmap_drawing(const HeatmapFigure& figure);
Image draw_heatmap(const HeatmapFigure& figure);

struct MaskFigure {
    FigureTexts texts;
    int n_columns = 0, n_rows = 0;
    std::vector<CellState> states;  ///< [n_rows, n_columns]
    MatrixAxis row_axis{"query position", 0, {}};
    MatrixAxis column_axis{"key position", 0, {}};
    MarkedColumns marked = {};
    FigureSize size;
    Background background = Background::light;
    bool has_legend = true;
};
Drawing mask_drawing(const MaskFigure& figure);
Image draw_mask(const MaskFigure& figure);

/// One thumbnail of the atlas.
struct AtlasCell {
    Plane values;
    std::vector<CellState> states;  ///< may be empty
};

struct AtlasFigure {
    FigureTexts texts;
    std::vector<int> layers, heads;  ///< the layers and heads shown: rows and columns of the grid
    /// Called once for each thumbnail, so that they need not be in memory together. All have the same
    /// shape.
    std::function<AtlasCell(int layer, int head)> cell;
    ColorScale scale;
    std::string value_label = "attention";
    Reduction reduction = Reduction::max;
    int max_width = 1600;
    int width = 0;  ///< of the picture, with text in proportion; 0: at most max_width
    PrintForm print = {};
    bool has_not_finite = false;  ///< some thumbnail has NaN or infinity: the legend explains its colour
    Background background = Background::light;
};
/// The drawing calls `cell` while it is written.
Drawing atlas_drawing(AtlasFigure figure);
Image draw_atlas(const AtlasFigure& figure);

}  // namespace keyhole
