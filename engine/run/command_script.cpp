#include "engine/run/command_script.h"

#include "engine/base/error.h"
#include "engine/base/json_text.h"
#include "engine/base/mapped_file.h"
#include "engine/base/number.h"

#include <algorithm>

namespace keyhole {

namespace {

constexpr std::size_t kMostScriptBytes = 4 << 20;
constexpr std::string_view kBlanks = " \t\r";

std::string_view trimmed(std::string_view text) {
    const std::size_t begin = std::min(text.find_first_not_of(kBlanks), text.size());
    text.remove_prefix(begin);
    return text.substr(0, text.find_last_not_of(kBlanks) + 1);
}

/// Converts a stamp, `+N` or `ROW`, to a row.
int row_of_stamp(std::string_view stamp, int n_prompt, int last_row) {
    const int prompt_end = n_prompt - 1;
    const bool relative = stamp.starts_with('+');
    const auto value = number_from_text<int>(stamp.substr(relative ? 1 : 0), relative ? 0 : kLowest<int>);
    if (!value)
        fail(ErrorCode::wrong_use,
             "'{}' is neither `+N` (tokens generated) nor a step number; a line is one of them and a command",
             shown_text(stamp));
    const std::int64_t row = std::int64_t{*value} + (relative ? prompt_end : 0);
    if (row < prompt_end)
        fail(ErrorCode::wrong_use, "step {} is before the end of the prompt (step {})", row, prompt_end);
    if (row > last_row)
        fail(ErrorCode::wrong_use,
             "step {} never comes: after {} tokens the run ends with step {}; generate more, or give an "
             "earlier step",
             row, last_row - prompt_end, last_row);
    return static_cast<int>(row);
}

/// Parses a command, in which `rewind +N` becomes `rewind ROW`.
Command parse_timed_command(std::string_view text, int n_prompt, int last_row) {
    constexpr std::string_view kRewind = "rewind";
    const std::string_view stamp = trimmed(text.substr(std::min(kRewind.size(), text.size())));
    if (text.starts_with(kRewind) && stamp.starts_with('+'))
        return Rewind{row_of_stamp(stamp, n_prompt, last_row)};
    return parse_command(text);
}

/// Returns the row that the run is at after a command.
int row_after(const LoggedCommand& logged, int n_prompt) {
    if (const auto* rewind = std::get_if<Rewind>(&logged.command)) return rewind->row;
    // A branch's end is known only when the script runs.
    return std::holds_alternative<GoToBranch>(logged.command) ? n_prompt - 1 : logged.row;
}

}  // namespace

std::vector<ScriptLine> script_lines(std::string_view text) {
    std::vector<ScriptLine> lines;
    for (int number = 1; !text.empty(); ++number) {
        const std::size_t end = std::min(text.find('\n'), text.size());
        const std::string_view line = trimmed(text.substr(0, end));
        if (!line.empty() && line.front() != '#') lines.push_back({number, std::string(line)});
        text.remove_prefix(std::min(end + 1, text.size()));
    }
    return lines;
}

std::vector<ScriptLine> read_script_lines(const std::filesystem::path& path) {
    return script_lines(read_text_input(path, kMostScriptBytes));
}

std::vector<LoggedCommand> parse_timed_script(std::string_view name, const std::vector<ScriptLine>& lines,
                                              int n_prompt, int last_row) {
    std::vector<LoggedCommand> commands;
    int earliest = n_prompt - 1;
    for (const ScriptLine& line : lines) {
        try {
            const std::string_view text = line.text;
            const std::size_t blank = std::min(text.find_first_of(kBlanks), text.size());
            const int row = row_of_stamp(text.substr(0, blank), n_prompt, last_row);
            if (row < earliest) fail(ErrorCode::wrong_use, "step {} comes after step {}", row, earliest);
            commands.push_back({row, parse_timed_command(trimmed(text.substr(blank)), n_prompt, last_row)});
            earliest = row_after(commands.back(), n_prompt);
        } catch (const Error& error) {
            fail(ErrorCode::wrong_use, "{}:{}: {}", name, line.number, error.what());
        }
    }
    return commands;
}

}  // namespace keyhole
