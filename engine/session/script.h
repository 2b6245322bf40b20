/// Scripts: text files with one command a line. The lines, as the window and `keyhole decode` share them, and the commands with their
/// rows, as `decode` takes them. Any thread.
#pragma once

#include "engine/session/command.h"

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

struct ScriptLine {
    int number = 0;    ///< from 1 on, as editors count
    std::string text;  ///< without blanks at its ends; never empty
};

/// The lines that say something: no blank ones, none that begin with `#`.
std::vector<ScriptLine> script_lines(std::string_view text);
/// Of a file. Throws Error(bad_file): it cannot be read, is no ordinary file, or is larger than 4 MiB.
std::vector<ScriptLine> read_script_lines(const std::filesystem::path& path);

/// Commands with the rows after which they apply: `+N command` after N generated tokens, `ROW command` after that row. Rows must not
/// descend, but after `rewind ROW` they start again from that row, and after `branch N` from where it ends; `rewind +N` is back to
/// after N generated tokens. Throws Error(wrong_use) with name and line, also for a row beyond last_row, where the run ends.
std::vector<LoggedCommand> parse_timed_script(std::string_view name, const std::vector<ScriptLine>& lines,
                                              int n_prompt, int last_row);

}  // namespace keyhole
