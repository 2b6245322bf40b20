/// The command line of this program as text, for the files that it writes. Set once by main(), then read on
/// any thread; knows no options.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

/// Puts the text in single quotes if a shell needs them.
std::string shell_word(std::string_view text);

/// Keeps the arguments that the program was started with.
void keep_command_line(const std::vector<std::string>& arguments);
/// Adds an option to them unless it is there: what the environment chose, so that the text says it too.
/// names: long and short.
void keep_option(std::string_view long_name, std::string_view short_name, const std::string& value);
/// Returns "keyhole decode --tokens 3 --out OUT": the folder of the files is not part of what made them.
/// Empty where nothing was kept.
std::string command_text();
/// The same with what `rewritten` makes of each option's value: it gets a name such as "--lane" or "-l".
std::string command_text(
    const std::function<std::string(std::string_view option, const std::string& value)>& rewritten);

}  // namespace keyhole
