/// Prints and writes which spans of a prompt lanes lost: system message, context, instruction.
/// Main thread; knows no window, and computes no measures itself.
#pragma once

#include "app/study/eval_report.h"
#include "engine/eval/span_measures.h"

#include <nlohmann/json_fwd.hpp>

#include <span>
#include <string>
#include <vector>

namespace keyhole {

/// The spans of one lane.
struct SpanReport {
    struct Line {
        SpanMeasures span;    ///< means
        int n_asked = 0;      ///< questions whose answer the span states
        Estimate nats = {};   ///< of their answers, with Student's interval; NaN: not known
        int n_right = 0;      ///< of these
        Estimate right = {};  ///< their share, with Wilson's interval; without meaning if none asks
    };
    std::string label;
    LaneSpec lane;
    std::vector<Line> lines;
};

/// asks_for: of each question, the name of the span that states its answer. outcomes: [lane][question].
/// has_nats: their likelihoods are of the same texts, not of each lane's own words.
std::vector<SpanReport> span_reports(const ReportLanes& lanes, std::span<const LaneSpans> spans,
                                     std::span<const std::string> asks_for,
                                     std::span<const std::vector<Outcome>> outcomes, bool has_nats);

/// Returns a table of each lane. A sentence names the span that lost most, where one did.
std::string span_text(std::span<const SpanReport> lanes);
/// Returns by_span.csv: a line for each lane and span.
std::string span_csv(const std::string& questions, std::span<const SpanReport> lanes);
nlohmann::json span_json(const std::string& questions, std::span<const SpanReport> lanes);

}  // namespace keyhole
