/// What of a model's folder is there. While loading; one thread.
#pragma once

#include <filesystem>

namespace keyhole {

/// Whether there is such a file or folder. Throws Error(bad_file) where the system does not say: links in a
/// circle or to nothing, no permission, a name that is too long.
bool is_there(const std::filesystem::path& path);

/// Whether it is there and a folder. The same errors.
bool is_folder(const std::filesystem::path& path);

}  // namespace keyhole
