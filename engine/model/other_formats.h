/// Models in other formats than Keyhole's: what to tell those who name one. Any thread.
#pragma once

#include <filesystem>
#include <string>

namespace keyhole {

/// What the file or folder holds and what to convert it with, for the end of a message; empty when nothing is known of it.
std::string conversion_hint(const std::filesystem::path& path);

}  // namespace keyhole
