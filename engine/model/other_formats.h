/// Hints for models in formats that Keyhole cannot load. Any thread. Knows file names only.
#pragma once

#include <filesystem>
#include <string>

namespace keyhole {

/// Returns what the file or folder holds and how to convert it, for the end of a message; empty when the
/// format is unknown.
std::string conversion_hint(const std::filesystem::path& path);

}  // namespace keyhole
