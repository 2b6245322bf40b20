#include "engine/base/path_lock.h"

#include "engine/base/error.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace keyhole {

std::optional<PathLock> PathLock::try_take(const std::filesystem::path& path) {
    for (;;) {
        PathLock lock(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
        if (lock.file_ < 0)
            fail(ErrorCode::io, "cannot lock {}: {}; check its permissions", path.string(),
                 std::strerror(errno));
        if (::flock(lock.file_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return std::nullopt;
        // The previous holder may have removed the file, and another program may have created it again.
        struct stat held {
        }, there{};
        if (::fstat(lock.file_, &held) == 0 && ::stat(path.c_str(), &there) == 0 &&
            held.st_ino == there.st_ino && held.st_dev == there.st_dev)
            return lock;
    }
}

PathLock PathLock::take(const std::filesystem::path& folder) {
    std::optional<PathLock> lock = try_take(folder);
    if (!lock)
        fail(ErrorCode::io,
             "cannot write to {}: another command writes there; wait for it or take another folder",
             folder.string());
    return std::move(*lock);
}

PathLock::~PathLock() {
    if (file_ >= 0) ::close(file_);
}

PathLock::PathLock(PathLock&& other) noexcept : file_(std::exchange(other.file_, -1)) {}

PathLock& PathLock::operator=(PathLock&& other) noexcept {
    std::swap(file_, other.file_);
    return *this;
}

}  // namespace keyhole
