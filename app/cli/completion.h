/// Writes shell completion from the commands' own options, the keys of lanes and the catalogue. Main thread.
#pragma once

#include "app/cli/command.h"

#include <string>
#include <string_view>

namespace keyhole {

/// Returns the completion file of `bash`, `zsh` or `fish`. program: with all commands and their help's form.
std::string completion_text(const CliCommand& program, std::string_view shell);

}  // namespace keyhole
