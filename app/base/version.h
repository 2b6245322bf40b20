/// The version of the program.
#pragma once

#include <string>

namespace keyhole {

/// As `keyhole --version` prints it: "0.1".
std::string program_version();

}  // namespace keyhole
