#include "app/base/assets.h"

#include <string_view>
#include <system_error>

namespace keyhole {

namespace fs = std::filesystem;

fs::path find_assets() {
    std::error_code ignored;
    const fs::path program = fs::read_symlink("/proc/self/exe", ignored).parent_path();
    for (const fs::path& candidate : {program / "assets", program / KH_ASSETS})
        if (fs::is_directory(candidate / "prompts", ignored)) return fs::canonical(candidate, ignored);
    return {};
}

std::string own_file(std::string name) {
    constexpr std::string_view kFolder = "assets/";
    std::error_code ignored;
    if (!name.starts_with(kFolder) || fs::exists(name, ignored)) return name;
    const fs::path own = find_assets() / name.substr(kFolder.size());
    return fs::exists(own, ignored) ? own.string() : name;
}

}  // namespace keyhole
