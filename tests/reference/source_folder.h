/// Where the tests' fixtures and the shipped models lie.
#pragma once

#include <cstdlib>
#include <filesystem>

namespace reference {

/// The sources' own folder; what KEYHOLE_SOURCE_DIR names in the environment, for programs that were built on another machine.
inline std::filesystem::path source_folder() {
    const char* named = std::getenv("KEYHOLE_SOURCE_DIR");
    return named != nullptr && *named != '\0' ? named : KH_SOURCE_DIR;
}

}  // namespace reference
