/// Writes the manual pages for man(1): keyhole(1) from the commands, keyhole-PAGE(7) from the manual. Main
/// thread.
#pragma once

#include "app/cli/command.h"

#include <string>

namespace keyhole {

/// Returns the source of keyhole(1). program: with all commands and their help's form. Throws Error(bad_file)
/// without a manual.
std::string program_man_page(const CliCommand& program);
/// Returns the source of keyhole-PAGE(7). Throws as read_manual_page().
std::string manual_man_page(const std::string& page);

}  // namespace keyhole
