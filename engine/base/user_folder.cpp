#include "engine/base/user_folder.h"

#include <array>
#include <cstdlib>
#include <utility>

namespace keyhole {

std::filesystem::path user_folder(UserFolder kind) {
    // By the order of UserFolder.
    static constexpr std::array<std::pair<const char*, const char*>, 4> kFolders = {{
        {"XDG_CACHE_HOME", ".cache"},
        {"XDG_CONFIG_HOME", ".config"},
        {"XDG_DATA_HOME", ".local/share"},
        {"XDG_STATE_HOME", ".local/state"},
    }};
    const auto& [variable, below_home] = kFolders.at(static_cast<std::size_t>(kind));
    if (const char* named = std::getenv(variable); named != nullptr && *named == '/')
        return std::filesystem::path(named) / "keyhole";
    const char* home = std::getenv("HOME");
    if (home == nullptr || *home == '\0') return {};
    return std::filesystem::path(home) / below_home / "keyhole";
}

}  // namespace keyhole
