/// Checks which files of a model's folder exist. Used by one thread while loading. Knows no format.
#pragma once

#include <filesystem>

namespace keyhole {

/// Returns whether the file or folder exists. Throws Error(bad_file) when the system cannot tell: cyclic or
/// dangling links, no permission, a name that is too long.
bool is_there(const std::filesystem::path& path);

/// Returns whether the path is an existing folder. Throws as is_there().
bool is_folder(const std::filesystem::path& path);

}  // namespace keyhole
