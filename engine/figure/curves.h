/// Line plots: scores of tokens over rows with the eviction threshold, metrics of lanes,
/// and sweep results with intervals. Plain data in, a drawing out; any thread. Colours are Okabe and
/// Ito's, each with its own dash, so that lines differ without colour too.
#pragma once

#include "engine/figure/drawing.h"

#include <limits>
#include <string>
#include <vector>

namespace keyhole {

struct Curve {
    std::string name = {};
    std::vector<double> x = {}, y = {};  ///< same length; NaN in y breaks the line
    bool threshold = false;              ///< drawn as a thick grey line; takes no colour of the list
    double end_mark =
        std::numeric_limits<double>::quiet_NaN();  ///< x where a cross marks the end (an eviction); NaN: none
    std::vector<double> low = {}, high = {};       ///< interval of each y, drawn as a bar; empty: none
};

struct CurvePlot {
    std::string title, subtitle, caption;
    std::string x_label, y_label;
    /// Not empty: x counts these words from 0. Points stand apart, with the words below them.
    std::vector<std::string> x_words;
    bool log_x = false;   ///< needs x > 0; ticks are at the curves' own x
    bool whole_x = true;  ///< ticks at whole numbers only
    bool log_y = false;   ///< values <= 0 break the line
    double y_floor = 0;   ///< with log_y: lower values are drawn at this one; 0: none
    std::vector<Curve> curves;
    int width = 960, height = 520;  ///< with text of normal size
    /// Of the picture in pixels, with text in proportion; 0: `width`. A narrow picture has its legend below.
    int picture_width = 0;
    Ground ground = Ground::light;
};

Drawing curves_drawing(const CurvePlot& plot);

}  // namespace keyhole
