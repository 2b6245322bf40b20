/// Maintains table.csv in the folder of a sweep: one line a lane of each question set. Keeps the lines of
/// earlier sweeps into the same folder. Main thread.
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
    /// Reads an existing file. Throws Error(bad_file) naming the line that a sweep did not write; the file
    /// is not changed.
    explicit SweepTable(std::filesystem::path path);

    /// The model and the questions of a line, beside its score.
    struct About {
        std::string model = {};
        double kv_bytes = 0;        ///< see SweepPoint; 0: not known
        int length = 0, depth = 0;  ///< of a needle map; length 0: it is none
        bool is_first = false;      ///< the lane that differences refer to, which has none itself
        std::string made_by = {};   ///< program, command and model's hash
    };
    /// Adds a score. asked: the questions as the answers' file names them; a line of the same lane and
    /// questions is replaced.
    void add(const QuestionSet& set, const std::string& asked, const GridCell& cell,
             std::span<const Vary> varies, const LaneScore& score, const About& about);
    /// Writes the file. Throws Error(io).
    void write() const;

  private:
    using Row = std::map<std::string, std::string>;  ///< by column; empty ones are left out
    void read(std::string_view text);
    void put(Row row);

    std::filesystem::path path_;
    std::vector<std::string> keys_;  ///< columns of the varied keys, in order of appearance
    std::vector<Row> rows_;
};

}  // namespace keyhole
