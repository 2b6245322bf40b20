/// What a sweep has found so far, a line an answer in a CSV file that is written as it goes: a sweep that was interrupted goes on from
/// it. One writer; main thread. Knows eval only.
#pragma once

#include "engine/eval/evaluate.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace keyhole {

class AnswerFile {
  public:
    /// Reads what is there; a last line that was cut off is dropped. Throws Error(bad_file) naming the line that is none of its own,
    /// which stays as it is; Error(io).
    explicit AnswerFile(std::filesystem::path path);

    /// question: its number in the set.
    std::optional<Outcome> find(const std::string& set, const std::string& lane, int question) const;
    /// Throws Error(bad_file) for an outcome that is not finite: the model's weights are at fault.
    void add(const std::string& set, const std::string& lane, int question, const Outcome& outcome);
    /// After the lanes of one question. Throws Error(io).
    void flush();
    const std::filesystem::path& path() const { return path_; }
    /// One line on what the file holds of the same questions asked of another model or on another backend, which is not mixed with
    /// what `set` asks; empty: nothing.
    std::string others(const std::string& set) const;

  private:
    std::size_t read_answers(std::string_view text);

    std::filesystem::path path_;
    std::map<std::pair<std::string, std::string>, std::map<int, Outcome>> known_;  // by set and lane
    std::ofstream out_;
};

/// What answers depend on: QuestionSet::identity and the kind of backend by Backend::name(), since CPU and CUDA round apart. The CPU is
/// not named, as in files from before there was another one.
std::string asked_on(const std::string& identity, std::string_view backend_name);

/// A field of a CSV line: in quotes where it has to be.
std::string csv_field(const std::string& text);
/// The fields of a line.
std::vector<std::string> split_csv(std::string_view line);

}  // namespace keyhole
