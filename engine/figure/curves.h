/// Line plots: scores of tokens over rows with the eviction threshold, metrics of lanes, and sweep results
/// with intervals. Plain data in, a drawing out; any thread. Lanes look as in the window; other colours are
/// Okabe and Ito's. Each has its own dash and marker, so that lines differ without colour too. Names stand at
/// the ends of the lines; those of several panels, and of narrow pictures, in a legend.
#pragma once

#include "engine/figure/drawing.h"

#include <limits>
#include <string>
#include <vector>

namespace keyhole {

struct Curve {
    std::string name = {};
    std::vector<double> x = {}, y = {};  ///< same length; NaN in y breaks the line
    /// A grey line that takes no colour of the list. The first of a plot is thick, others are thin and
    /// dashed.
    bool threshold = false;
    /// It takes its colour of the list, but neither a line nor a name is drawn.
    bool hidden = false;
    double end_mark =
        std::numeric_limits<double>::quiet_NaN();  ///< x where a cross marks an end (an eviction); NaN: none
    std::vector<double> low = {}, high = {};       ///< interval of each y, drawn as a bar; empty: none
    int look = -1;  ///< of a lane: see lane_look(); -1: it takes the next look of the list
};

/// One of several panels with the axes of the whole plot. Curves of equal names look the same in all.
struct CurvePanel {
    std::string title = {};
    std::vector<Curve> curves = {};
};

struct CurvePlot {
    std::string title, subtitle, caption;
    std::string x_label, y_label;
    /// Not empty: x counts these words from 0. Points stand apart, with the words below them.
    std::vector<std::string> x_words;
    bool log_x = false;   ///< needs x > 0; ticks are at the curves' own x where these are few and whole
    bool whole_x = true;  ///< ticks at whole numbers only
    bool log_y = false;   ///< values <= 0 break the line
    double y_floor = 0;   ///< with log_y: lower values are drawn at this one; 0: none
    std::vector<Curve> curves;
    /// The curves have an order, such as layers. If they are more than the list has colours, they are thin
    /// lines in the colours of a ramp, and some of them have names. Not for panels.
    bool ordered = false;
    std::vector<CurvePanel> panels = {};  ///< not empty: these are drawn, and not `curves`
    bool own_y = false;                   ///< each panel has a y axis of its own
    int width = 960, height = 520;        ///< with text of normal size
    /// Width of the picture in pixels, with text in proportion; 0: `width`. A narrow picture has its legend
    /// below.
    int picture_width = 0;
    PrintForm print = {};
    Background background = Background::light;
};

Drawing curves_drawing(const CurvePlot& plot);

}  // namespace keyhole
