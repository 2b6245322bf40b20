/// Finds the program's own files.
/// Any thread; knows neither the engine nor the window.
#pragma once

#include <filesystem>

namespace keyhole {

/// Returns the folder assets/ beside the sources or beside the program; empty if it is not found.
std::filesystem::path find_assets();

}  // namespace keyhole
