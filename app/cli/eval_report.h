/// What eval and sweep print and write of their scores. Main thread.
#pragma once

#include "engine/eval/evaluate.h"
#include "engine/eval/sweep_grid.h"
#include "engine/figure/curves.h"

#include <span>
#include <string>
#include <vector>

namespace keyhole {

/// Table with a line a lane, the first one being the reference. labels: of the lanes, as the user knows them.
std::string score_table(const QuestionSet& set, std::span<const std::string> labels,
                        std::span<const LaneScore> scores);

/// What --json prints: {"lanes": [...]} with an entry for each lane of each set; scores[set][lane].
std::string score_json(std::span<const QuestionSet> sets, std::span<const LaneSpec> lanes,
                       std::span<const std::vector<LaneScore>> scores);

Interval perplexity_interval(const LaneScore& score);

/// Scores against the first key that is varied, a curve for each lane and combination of the others. Without a key of numbers: no curves.
CurvePlot score_plot(const QuestionSet& set, std::span<const GridCell> cells,
                     std::span<const LaneScore> scores, std::span<const Vary> varies,
                     const std::string& model);

}  // namespace keyhole
