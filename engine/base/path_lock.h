/// A lock between programs on a file or folder that exists. Any thread; knows base only.
#pragma once

#include <filesystem>
#include <optional>

namespace keyhole {

/// Held until the object, or the process, ends: a lock that can be taken is proof that its last holder is
/// gone. It leaves no file behind.
class PathLock {
  public:
    /// Nothing where another holder has it. Where the file system knows no locks the object holds none.
    /// Throws Error(io).
    static std::optional<PathLock> try_take(const std::filesystem::path& path);
    ~PathLock();
    PathLock(PathLock&& other) noexcept;
    PathLock& operator=(PathLock&& other) noexcept;

  private:
    explicit PathLock(int file) : file_(file) {}
    int file_ = -1;
};

}  // namespace keyhole
