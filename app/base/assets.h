/// Finds the program's own files.
/// Any thread; knows neither the engine nor the window.
#pragma once

#include <filesystem>
#include <string>

namespace keyhole {

/// Returns the folder assets/ beside the program, as in a build folder, or where an installation has it.
/// Follows links. Empty: it is not found.
std::filesystem::path find_assets();

/// Returns the path of a file or folder of Keyhole that is named as in the manual: assets/prompts/story.txt.
/// Returns the name itself if it is another, or if it exists in the current folder.
std::string own_file(std::string name);

}  // namespace keyhole
