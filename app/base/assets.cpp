#include "app/base/assets.h"

#include <system_error>
#include <vector>

namespace keyhole {

std::filesystem::path find_assets() {
    std::error_code ignored;
    std::vector<std::filesystem::path> candidates;
    const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", ignored);
    if (!self.empty()) {
        candidates.push_back(self.parent_path() / "assets");
        candidates.push_back(self.parent_path().parent_path() / "assets");
        candidates.push_back(self.parent_path().parent_path() / "share" / "keyhole" / "assets");
    }
#ifdef KH_ASSETS_DIR
    candidates.emplace_back(KH_ASSETS_DIR);
#endif
    candidates.emplace_back("assets");
    for (const std::filesystem::path& candidate : candidates)
        if (std::filesystem::is_directory(candidate / "prompts", ignored)) return candidate;
    return {};
}

}  // namespace keyhole
