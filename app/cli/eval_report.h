/// Prints and writes the scores of eval and sweep.
/// Main thread; knows no window, and computes no scores itself.
#pragma once

#include "engine/eval/evaluate.h"
#include "engine/eval/sweep_grid.h"
#include "engine/figure/curves.h"

#include <span>
#include <string>
#include <vector>

namespace keyhole {

/// Returns a table with one line a lane. The first lane is the reference. labels: the lanes as the user
/// typed them.
std::string score_table(const QuestionSet& set, std::span<const std::string> labels,
                        std::span<const LaneScore> scores);

/// Returns the output of --json: {"lanes": [...]} with an entry for each lane of each set;
/// scores[set][lane].
std::string score_json(std::span<const QuestionSet> sets, std::span<const LaneSpec> lanes,
                       std::span<const std::vector<LaneScore>> scores);

Interval perplexity_interval(const LaneScore& score);

/// Plots scores against the first varied key, with one curve for each lane and combination of the other
/// keys. Values that are not all numbers of one unit stand side by side as words. Needs a key.
CurvePlot score_plot(const QuestionSet& set, std::span<const GridCell> cells,
                     std::span<const LaneScore> scores, std::span<const Vary> varies,
                     const std::string& model);

}  // namespace keyhole
