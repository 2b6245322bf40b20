/// Prints and writes what a search for a lane's numbers found.
/// Main thread; knows no window, and computes no scores itself.
#pragma once

#include "app/study/eval_report.h"
#include "app/study/lane_search.h"

#include <nlohmann/json_fwd.hpp>

#include <optional>
#include <string>
#include <vector>

namespace keyhole {

struct SearchTried {
    SearchTry tried;
    double kv_bytes = 0;
    LaneScore score;  ///< on the questions of the search
};

struct SearchReport {
    std::vector<SearchRange> ranges;
    std::vector<SearchTried> tried;  ///< in this order; the lane as given is the first
    bool by_right = false;           ///< ranked by right answers; else by nats or a measure
    /// Of the user's own questions, and the one that lanes are ranked by; nullopt: none.
    std::vector<MeasureKind> measures{};
    std::optional<std::size_t> by_measure = {};
    bool in_own_words = false;  ///< nats are of each lane's own words and say nothing
    bool is_task = false;
    double total_bytes = 0;
    int n_refused = 0;  ///< lanes that did not fit
    // On other questions: the full cache, the lane as given, and the best one if it is another.
    ReportLanes lanes{};
    std::vector<LaneScore> held_out{};

    /// Returns the indices of the tried lanes, the best first; of equal ones the first tried.
    std::vector<std::size_t> ranked() const;
};

/// Returns a table of the best lanes, and how many were tried.
std::string search_text(const SearchReport& report, std::size_t most);
/// Returns what the other questions say about the best lane.
std::string held_out_text(const SearchReport& report);
/// Returns search.csv: a line for each lane in the order tried.
std::string search_csv(const SearchReport& report);
nlohmann::json search_json(const SearchReport& report);

}  // namespace keyhole
