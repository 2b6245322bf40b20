/// Maps of few values in labelled cells, one panel a lane: two varied keys, or the place of a needle against
/// the length of the text. Each cell says its number too, so that colour is not the only sign. Plain data in,
/// a drawing out; any thread. Knows no sweep.
#pragma once

#include "engine/figure/drawing.h"
#include "engine/figure/frame.h"

#include <string>
#include <utility>
#include <vector>

namespace keyhole {

struct ValuePanel {
    std::string title;
    std::vector<float> values = {};  ///< [rows, columns], the first row on top; NaN: no value
    /// [rows, columns] or empty: words that an SVG shows at the cell under the pointer
    std::vector<std::string> notes = {};
};

struct ValueMap {
    FigureTexts texts;
    std::string row_label, column_label, value_label;
    std::vector<std::string> rows, columns;  ///< labels of the cells, the same in every panel
    std::vector<ValuePanel> panels;
    ColorScale scale;       ///< shared by all panels
    int panel_columns = 0;  ///< panels side by side; 0: as many as have room for large cells
    int decimals = 0;       ///< of the numbers in the cells; below 0: no numbers
    int width = 0;          ///< of the picture in pixels, with text in proportion; 0: the usual one
    PrintForm print = {};
    /// A few values with their names, if there are no others: in place of a bar. empty_name: of cells
    /// without a value; empty: the legend does not have them.
    std::vector<std::pair<float, std::string>> named_values = {};
    std::string empty_name = {};
    Background background = Background::light;
};
Drawing value_map_drawing(const ValueMap& map);

/// Returns black or white, whichever can be read better on a colour.
Rgb8 ink_on(Rgb8 color);

}  // namespace keyhole
