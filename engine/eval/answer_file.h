/// What a sweep has found so far, a line an answer in a CSV file that is written as it goes: a sweep that was interrupted goes on from
/// it. One writer; main thread. Knows eval only.
#pragma once

#include "engine/eval/evaluate.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>

namespace keyhole {

class AnswerFile {
  public:
    /// Reads what is there; a last line that was cut off is dropped. Throws Error(bad_file) naming the line that is none of its own,
    /// Error(io).
    explicit AnswerFile(std::filesystem::path path);

    /// question: its number in the set.
    std::optional<Outcome> find(const std::string& set, const std::string& lane, int question) const;
    void add(const std::string& set, const std::string& lane, int question, const Outcome& outcome);
    /// After the lanes of one question. Throws Error(io).
    void flush();
    const std::filesystem::path& path() const { return path_; }

  private:
    std::filesystem::path path_;
    std::map<std::pair<std::string, std::string>, std::map<int, Outcome>> known_;  // by set and lane
    std::ofstream out_;
};

/// A field of a CSV line: in quotes where it has to be.
std::string csv_field(const std::string& text);
/// The fields of a line.
std::vector<std::string> split_csv(const std::string& line);

}  // namespace keyhole
