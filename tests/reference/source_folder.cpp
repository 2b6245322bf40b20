#include "tests/reference/source_folder.h"

#include <cstdlib>

namespace reference {

std::filesystem::path source_folder() {
    const char* named = std::getenv("KEYHOLE_SOURCE_DIR");
    return named != nullptr && *named != '\0' ? named : KH_SOURCE_DIR;
}

std::string built(const std::string& name) {
    return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / name).string();
}

}  // namespace reference
