#include "engine/model/folder_files.h"

#include "engine/base/error.h"

#include <system_error>

namespace keyhole {
namespace {

namespace fs = std::filesystem;

fs::file_type type_of(const fs::path& path) {
    std::error_code error;
    const fs::file_type type = fs::status(path, error).type();
    if (type == fs::file_type::not_found) {
        std::error_code none;
        const fs::path target = fs::read_symlink(path, none);
        if (!none)
            fail(ErrorCode::bad_file,
                 "cannot read {}: it is a link to {}, which is not there; copy the file instead",
                 path.string(), target.string());
        return type;
    }
    if (type == fs::file_type::none)
        fail(ErrorCode::bad_file, "cannot read {}: {}; check the path, its links and its permissions",
             path.string(), error.message());
    return type;
}

}  // namespace

bool is_there(const fs::path& path) {
    return type_of(path) != fs::file_type::not_found;
}

bool is_folder(const fs::path& path) {
    return type_of(path) == fs::file_type::directory;
}

}  // namespace keyhole
