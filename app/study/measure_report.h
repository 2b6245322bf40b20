/// Prints and writes the measures of answers to a user's own questions: ROUGE, exact match, F1, right
/// choices. Main thread; knows no window, and computes no scores itself.
#pragma once

#include "engine/eval/evaluate.h"
#include "engine/eval/sweep_grid.h"
#include "engine/eval/two_at_a_time.h"

#include <nlohmann/json_fwd.hpp>

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace keyhole {

struct ReportLanes;

/// Returns a table with one line for each lane and measure.
std::string measure_table(const QuestionSet& set, const ReportLanes& lanes,
                          std::span<const LaneScore> scores);

/// Adds "measures" to a lane's entry of --json; nothing if the set has none. ROUGE has the geometric mean of
/// its three means besides (TOVA, figure 4).
void add_measures(nlohmann::json& lane, const QuestionSet& set, const LaneScore& score, bool is_first);

/// Returns one JSON object a line for what each lane answered to one question.
std::string answer_lines(const QuestionSet& set, const Asked& asked, std::span<const Outcome> outcomes);

/// Maintains measures.csv in the folder of a sweep: one line for each lane and measure of each question set.
/// Keeps the lines of earlier sweeps into the same folder.
class MeasureTable {
  public:
    /// Reads an existing file. Throws Error(bad_file) naming the line that a sweep did not write; the file
    /// is not changed.
    explicit MeasureTable(std::filesystem::path path);
    /// asked: the questions as the answers' file names them; lines of the same lanes and questions are
    /// replaced. against: the cell that differences refer to.
    void add(const QuestionSet& set, const std::string& asked, std::span<const GridCell> cells,
             std::span<const LaneScore> scores, std::size_t against, const std::string& made_by);
    /// Throws Error(io).
    void write() const;

  private:
    using Key = std::vector<std::string>;  ///< asked, spec, measure
    std::filesystem::path path_;
    std::vector<Key> order_;
    std::map<Key, std::string> lines_;
};

}  // namespace keyhole
