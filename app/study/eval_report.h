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

/// The lanes of a table.
struct ReportLanes {
    std::vector<std::string> labels;      ///< names, or specs as typed
    std::vector<LaneSpec> specs = {};     ///< for score_json()
    std::vector<double> kv_bytes = {};    ///< that each stores after the text; empty: not shown
    std::size_t against = 0;              ///< the lane that differences refer to
    std::string sort = {};                ///< right, nats, bytes; empty: as given
    std::vector<double> peak_bytes = {};  ///< most that each stores at a time; empty: not shown
    /// Adds what the next lane stores.
    void note(const KvBytes& bytes) {
        kv_bytes.push_back(bytes.after);
        peak_bytes.push_back(bytes.most);
    }
};

/// Returns a table with one line a lane.
std::string score_table(const QuestionSet& set, const ReportLanes& lanes, std::span<const LaneScore> scores);

/// Returns the order of the table's lines.
std::vector<std::size_t> line_order(const ReportLanes& lanes, std::span<const LaneScore> scores);
/// Returns the width of the column of labels.
int label_width(const ReportLanes& lanes);
/// Returns the cell of a line with the bytes, with a blank before it, or that of the header; "" if they are
/// not known.
std::string bytes_cell(const ReportLanes& lanes, std::size_t lane);
std::string bytes_header(const ReportLanes& lanes);
/// Returns "Differences are to NAME." with a line end if they are not to the first lane.
std::string against_text(const ReportLanes& lanes);

/// Returns a table of what it costs that lanes evict before they see the question: right answers of both ways
/// and their paired difference. set: the one that asks after the eviction, else nothing is returned. before:
/// of the set before it, which asks the same; empty: nothing is returned. outcomes: [lane][question].
std::string ask_when_table(const QuestionSet& set, const ReportLanes& lanes,
                           std::span<const std::vector<Outcome>> before,
                           std::span<const std::vector<Outcome>> after);

/// Returns a line that says so if the reference is never right, nor any other lane, so that differences mean
/// nothing, and what to try; else nothing. asks: the value of --ask.
std::string reference_fails_text(const QuestionSet& set, const ReportLanes& lanes,
                                 std::span<const LaneScore> scores, std::string_view asks);

/// Returns the output of --json: {"lanes": [...]} with an entry for each lane of each set;
/// scores[set][lane]. lanes: of each set.
nlohmann::json score_json(std::span<const QuestionSet> sets, std::span<const ReportLanes> lanes,
                          std::span<const std::vector<LaneScore>> scores);

Interval perplexity_interval(const LaneScore& score);

}  // namespace keyhole
