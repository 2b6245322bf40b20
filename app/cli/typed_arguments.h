/// Looks at what was typed before it is parsed: a message for words that are not Keyhole's, with what to
/// write instead. Knows the words of llama.cpp, ollama and transformers. Main thread.
#pragma once

#include "app/cli/command.h"

#include <span>
#include <string>
#include <string_view>

namespace keyhole {

/// Returns the message for a first word that is no command, such as "decod" or "run".
std::string unknown_command_text(const CliCommand& program, std::string_view typed);

/// Throws Error(wrong_use) if the command does not take all that was typed after its name: one line with the
/// unknown arguments in the order typed, what was probably meant, and the page that lists what there is.
void check_typed(const CliCommand& command, std::span<const std::string> typed);

}  // namespace keyhole
