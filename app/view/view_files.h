/// Files of what other views than the focused head show: curves against the row, the atlas, the overlap of two lanes; as pictures by the
/// figure code that exports share, and as tables of the numbers behind them. Window thread; no GL.
#pragma once

#include "engine/analysis/measure_curves.h"
#include "app/view/view_state.h"
#include "engine/figure/curves.h"
#include "engine/figure/image.h"
#include "engine/trace/run_history.h"

#include <string>
#include <vector>

namespace keyhole {

/// A lane on show: its card and its index into history.lanes().
struct ShownLane {
    int card = 0;
    int lane = 0;
    std::string name;  ///< "1 h2o"
};

/// What the curves panel draws: scores of the picked tokens of the first lane, a measure of all lanes, or the watched words.
CurvePlot curve_figure(const RunHistory& history, const MeasureCurves& measures, const ViewState& view,
                       const std::vector<ShownLane>& lanes);
/// The same numbers: `row` and a column a curve; empty where there is none. With a header line.
std::string curve_table(const CurvePlot& plot);

/// All heads of a lane up to the shown row: attention, or mask as hatch over it. stride, dense_from: which rows the recorder kept.
Image atlas_figure(const RunHistory& history, const ViewState& view, const ShownLane& lane, int stride = 1,
                   int dense_from = 0);

/// Overlap of the kept sets of two lanes after the shown row, a line a KV head: layer, KV head, both, only a, only b, neither, overlap.
std::string overlap_table(const RunHistory& history, int a, int b, int row);

}  // namespace keyhole
