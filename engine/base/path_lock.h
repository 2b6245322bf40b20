/// A lock between programs on an existing file or folder. Any thread; knows base only.
#pragma once

#include <filesystem>
#include <optional>

namespace keyhole {

/// Held until the object is destroyed or the process ends. Success in taking a lock therefore proves that
/// its last holder is gone. Leaves no file behind.
class PathLock {
  public:
    /// Returns nullopt when another holder has the lock. On a file system without locks it returns an
    /// object that holds none. Throws Error(io).
    static std::optional<PathLock> try_take(const std::filesystem::path& path);
    /// The same of a folder that a command writes to; throws Error(io) also where another one has it.
    static PathLock take(const std::filesystem::path& folder);
    ~PathLock();
    PathLock(PathLock&& other) noexcept;
    PathLock& operator=(PathLock&& other) noexcept;

  private:
    explicit PathLock(int file) : file_(file) {}
    int file_ = -1;
};

}  // namespace keyhole
