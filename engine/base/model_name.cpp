#include "engine/base/model_name.h"

namespace keyhole {

std::string model_name(const std::filesystem::path& path) {
    const std::filesystem::path whole = path.lexically_normal();
    return (whole.has_filename() ? whole : whole.parent_path()).filename().string();
}

}  // namespace keyhole
