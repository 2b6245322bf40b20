/// Where the program's own files lie. Any thread.
#pragma once

#include <filesystem>

namespace keyhole {

/// assets/ beside the sources or beside the program, wherever it is; empty when not found.
std::filesystem::path find_assets();

}  // namespace keyhole
