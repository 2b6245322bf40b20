/// The form of `keyhole COMMAND --help`: options in groups, FILE, DIR and N for their values, and examples.
/// Main thread; knows the names of options, not what they do.
#pragma once

#include "app/cli/command.h"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

/// Gives all commands this form. Call it when they have all their options.
void give_help_its_form(const CliCommand& program);

/// Returns the lines that the help of a command shows as examples; those of `keyhole --help` for "".
std::vector<std::string_view> help_examples(std::string_view command);

/// Returns an option's value in a word: FILE, N, "auto|cpu|cuda"; empty for a flag.
std::string value_word(const CliOption& option);

}  // namespace keyhole
