/// Reads questions with known answers from a file of the user: JSON Lines, one object a line. Any thread;
/// knows base only.
///
///     system      a system message before all else; may be missing
///     context     text before the prompt, which several questions may share; may be missing
///     prompt      text that the model reads
///     references  list of right answers; an answer in the model's own words is compared with them
///     choices     list of texts, of which the most likely one is the answer
///     answer      with choices: the number of the right one, from 0, or the text of it; without it the first
///                 reference
///     target      in place of references and choices: the text whose likelihood is measured, token by token
///     spans       texts of the above by name, of which `eval --by span` says what is lost; may be missing
///     asks_for    the name of the span that states the answer; may be missing
///
/// Blank lines are skipped. All lines have choices, all have a target, or none has either.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace keyhole {

struct DataExample {
    std::string system;   ///< empty: none
    std::string context;  ///< empty: none
    std::string prompt;
    std::vector<std::string> references;
    std::vector<std::string> choices;  ///< with no target either: the answer is the model's own text
    std::string target;                ///< empty: none
    std::vector<std::pair<std::string, std::string>> spans;  ///< name and text, in the order of the names
    std::string asks_for;                                    ///< empty: not known
    int answer = 0;                                          ///< index of the right choice
    int line = 0;                                            ///< in the file, from 1
    /// Returns the answer that an example shows: the target, the right choice, or the first reference.
    const std::string& shown_answer() const {
        if (!target.empty()) return target;
        return choices.empty() ? references.front() : choices[static_cast<std::size_t>(answer)];
    }
};

struct DataFile {
    std::vector<DataExample> examples;  ///< at least one
    std::string digest;                 ///< of the file's bytes
    bool has_choices() const { return !examples.front().choices.empty(); }
    bool has_targets() const { return !examples.front().target.empty(); }
};

/// Reads a file, or a pipe. Throws Error(bad_file) in one line that names the file, the line and the field:
/// not JSON, an unknown or missing field, a value of another type, or more than this reads (a line of 16 MiB,
/// a million lines, 1,000 references or choices a line).
DataFile read_data_file(const std::filesystem::path& path);
/// The same for its text. name: for messages.
DataFile parse_data_file(std::string_view text, std::string_view name);

}  // namespace keyhole
