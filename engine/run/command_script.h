/// Reads scripts: text files with one command per line. The lines serve the window and `keyhole decode`, the
/// commands with rows serve `decode`. Any thread; knows commands, but no session.
#pragma once

#include "engine/run/command.h"

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

struct ScriptLine {
    int number = 0;    ///< from 1 on, as editors count
    std::string text;  ///< trimmed; never empty
};

/// Returns the lines of a text except blank ones and those that begin with `#`.
std::vector<ScriptLine> script_lines(std::string_view text);
/// The same for a file. Throws Error(bad_file) if it cannot be read, is not a regular file, or exceeds 4 MiB.
std::vector<ScriptLine> read_script_lines(const std::filesystem::path& path);

/// Parses commands with the rows after which they apply: `+N command` after N generated tokens, `ROW command`
/// after that row. Rows must not descend. After `rewind ROW` they start again from that row, and after
/// `branch N` from that branch's end. `rewind +N` returns to after N generated tokens. Throws
/// Error(wrong_use) with name and line, also for a row beyond last_row, where the run ends.
std::vector<LoggedCommand> parse_timed_script(std::string_view name, const std::vector<ScriptLine>& lines,
                                              int n_prompt, int last_row);

}  // namespace keyhole
