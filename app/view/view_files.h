/// Draws the views other than the focused head for files: curves over the steps, the atlas, the overlap of
/// two lanes. Pictures come from the figure code that exports share; tables hold the numbers behind them.
/// Window thread; no GL.
#pragma once

#include "app/view/focus_picture.h"
#include "app/view/view_state.h"
#include "engine/analysis/measure_curves.h"
#include "engine/figure/curves.h"
#include "engine/trace/run_history.h"

#include <string>
#include <vector>

namespace keyhole {

struct ShownLane {
    int index = 0;     ///< among the lanes of the last step
    int lane = 0;      ///< into history.lanes()
    std::string name;  ///< "1 h2o"
    int look = 0;      ///< see lane_look()
};

/// Draws the content of the curves panel: scores of the first lane's picked tokens, a measure of all lanes,
/// or the watched words. A lane has the same colour whichever is in focus.
CurvePlot curve_figure(const RunHistory& history, const MeasureCurves& measures, const ViewState& view,
                       const std::vector<ShownLane>& lanes);
/// Returns the same numbers as CSV with a header: `row`, and a column a curve. A missing value is an empty
/// field.
std::string curve_table(const CurvePlot& plot);

/// Returns the chosen indices; all below n if none are chosen.
std::vector<int> chosen_or_all(const std::vector<int>& chosen, int n);

/// Draws heads of a lane up to the shown row: attention, with the mask hatched over it. request: its width,
/// background, first row, layers and heads, and which rows the recorder stored. The drawing reads `history`
/// while it is written.
Drawing atlas_picture(const RunHistory& history, const ViewState& view, const ShownLane& lane,
                      const PictureOptions& request = {});

/// Returns the overlap of the kept sets of two lanes after the shown row as CSV, with a line a KV head:
/// layer, KV head, both, only a, only b, neither, overlap.
std::string overlap_table(const RunHistory& history, int a, int b, int row);

}  // namespace keyhole
