/// Line plots as SVG or pixels: scores of tokens over rows with the eviction threshold, metrics of lanes,
/// and sweep results with intervals. Plain data in, text or pixels out; any thread. Colours are Okabe and
/// Ito's, each with its own dash, so that lines differ without colour too.
#pragma once

#include "engine/figure/image.h"

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
    std::string end_text = {};                     ///< text beside the cross
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
    int width = 960, height = 520;
};

std::string draw_curves(const CurvePlot& plot);
Image draw_curves_image(const CurvePlot& plot);

/// Returns text escaped for XML: & < > " become entities; control characters and broken UTF-8 become
/// U+FFFD.
std::string escape_xml(std::string_view text);

}  // namespace keyhole
