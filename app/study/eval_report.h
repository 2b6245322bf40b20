/// Prints and writes the scores of eval and sweep.
/// Main thread; knows no window, and computes no scores itself.
#pragma once

#include "engine/eval/evaluate.h"
#include "engine/policy/lane_spec.h"

#include <nlohmann/json_fwd.hpp>

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

/// Returns a table with one line a lane. The first lane is the reference. labels: the lanes as the user
/// typed them.
std::string score_table(const QuestionSet& set, std::span<const std::string> labels,
                        std::span<const LaneScore> scores);

/// Returns a line that says so if the first lane is never right, so that differences to it mean nothing, and
/// what to try; else nothing. asks: the value of --ask.
std::string reference_fails_text(const QuestionSet& set, std::span<const std::string> labels,
                                 std::span<const LaneScore> scores, std::string_view asks);

/// Returns the output of --json: {"lanes": [...]} with an entry for each lane of each set;
/// scores[set][lane].
nlohmann::json score_json(std::span<const QuestionSet> sets, std::span<const LaneSpec> lanes,
                          std::span<const std::vector<LaneScore>> scores);

Interval perplexity_interval(const LaneScore& score);

}  // namespace keyhole
