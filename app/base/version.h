/// Returns the version of the program.
/// Any thread; knows neither the engine nor the window.
#pragma once

#include <string>

namespace keyhole {

/// Returns the version as `keyhole --version` prints it: "0.1 (0123456789)", with the commit where the
/// program was built in a clone of the repository, else "0.1".
std::string program_version();
/// Returns "Keyhole 0.1", for files.
std::string program_name();

}  // namespace keyhole
