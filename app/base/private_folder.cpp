#include "app/base/private_folder.h"

#include "engine/base/error.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <system_error>

namespace keyhole {

namespace fs = std::filesystem;

PrivateFolder::PrivateFolder() {
    std::error_code error;
    const fs::path shared = fs::temp_directory_path(error);
    if (error)
        fail(ErrorCode::io,
             "cannot find a folder for temporary files: {}; set TMPDIR to one that can be written",
             error.message());
    std::string name = (shared / "keyhole-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr)
        fail(ErrorCode::io, "cannot make the temporary folder {}: {}; set TMPDIR to one that can be written",
             name, std::strerror(errno));
    path_ = name;
}

fs::path PrivateFolder::make_file(const char* name) const {
    fs::path file = path_ / name;
    const int made = ::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (made < 0)
        fail(ErrorCode::io, "cannot make {}: {}; set TMPDIR to a folder that can be written", file.string(),
             std::strerror(errno));
    ::close(made);
    return file;
}

PrivateFolder::~PrivateFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
}

}  // namespace keyhole
