/// The answers that a sweep has found so far: a CSV file with one line per answer, written as it goes, so
/// that an interrupted sweep can continue. One writer, on the main thread. Knows eval only.
#pragma once

#include "engine/base/csv_field.h"
#include "engine/eval/evaluate.h"
#include "engine/policy/lane_spec.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace keyhole {

class AnswerFile {
  public:
    /// Reads an existing file and drops an incomplete last line. A file of an earlier version is written
    /// anew: the fields that it lacks (measures; distance, depth and held; kl; made_by) are empty, and where
    /// it lacks measures, its lanes have kv_dtype=f32, as all had then. Throws Error(bad_file), naming the
    /// line, if a line is not the file's own; the file then stays as it is. Throws Error(io).
    explicit AnswerFile(std::filesystem::path path);

    /// Returns a known answer. question: its number in the set.
    std::optional<Outcome> find(const std::string& set, const std::string& lane, int question) const;
    /// What makes the answers from here on, in one line: the next one has it as its made_by, those behind it
    /// nothing, up to that of another maker.
    void set_made_by(std::string made_by);
    /// Adds an answer. Throws Error(bad_file) if it is not finite, which means damaged model weights.
    void add(const std::string& set, const std::string& lane, int question, const Outcome& outcome);
    /// Writes what was added; call it after the lanes of one question. Throws Error(io).
    void flush();
    const std::filesystem::path& path() const { return path_; }
    /// Returns one line on answers in the file to the same questions by another model or on another backend,
    /// which are not mixed with those of `set`; empty if there are none.
    std::string others(const std::string& set) const;

  private:
    std::size_t read_answers(std::string_view text);

    std::filesystem::path path_;
    std::map<std::pair<std::string, std::string>, std::map<int, Outcome>> known_;  // by set and lane
    std::ofstream out_;
    std::string made_by_;  // of the next answer
    int reason_ = 0;       ///< errno of the first failure
};

/// Returns a lane's name in the file: its spec and, where it reads a file of calibration, what that holds.
std::string answer_lane(const LaneSpec& lane);

/// Returns what answers depend on: QuestionSet::identity and the kind of backend by Backend::name(), since
/// CPU and CUDA round differently, and so do products in integers or in the type of the weights. The CPU in
/// floats is not named, as in files from before there was another backend.
std::string asked_on(const std::string& identity, std::string_view backend_name);

}  // namespace keyhole
