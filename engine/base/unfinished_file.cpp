#include "engine/base/unfinished_file.h"

#include "engine/base/error.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace keyhole {

UnfinishedFile::UnfinishedFile(const std::filesystem::path& target) : path_(target) {
    static std::atomic<unsigned> counter{0};
    path_ += fmt::format(".{}-{}.part", ::getpid(), counter.fetch_add(1));
}

UnfinishedFile::~UnfinishedFile() {
    ::unlink(path_.c_str());
}

void move_into_place(const std::filesystem::path& part, const std::filesystem::path& path) {
    const int file = ::open(part.c_str(), O_RDONLY | O_CLOEXEC);
    int error = file < 0 || ::fsync(file) != 0 ? errno : 0;
    if (file >= 0) ::close(file);
    if (error == 0 && std::rename(part.c_str(), path.c_str()) != 0) error = errno;
    if (error != 0)
        fail(ErrorCode::io, "cannot write {}: {}; check that its folder is writable and has room",
             path.string(), std::strerror(error));
}

}  // namespace keyhole
