/// table.csv in the folder of a sweep: a line a lane of each set of questions, those of earlier sweeps into the folder too. Main thread.
#pragma once

#include "engine/eval/evaluate.h"
#include "engine/eval/sweep_grid.h"

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

class SweepTable {
  public:
    /// Reads what is there. Throws Error(bad_file) naming the line that is none of a sweep's, which stays as it is.
    explicit SweepTable(std::filesystem::path path);

    /// asked: what the answers' file calls the questions; equal ones of a lane replace each other.
    void add(const QuestionSet& set, const std::string& asked, const GridCell& cell,
             std::span<const Vary> varies, const LaneScore& score);
    /// Throws Error(io).
    void write() const;

  private:
    using Row = std::map<std::string, std::string>;  ///< by column; those that say nothing are left out
    void read(std::string_view text);
    void put(Row row);

    std::filesystem::path path_;
    std::vector<std::string> keys_;  ///< columns of what was varied, in order of appearance
    std::vector<Row> rows_;
};

}  // namespace keyhole
