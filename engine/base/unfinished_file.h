/// A file that is written beside its target and renamed when it is complete. One owner; knows base only.
#pragma once

#include <filesystem>

namespace keyhole {

/// A name beside the target, TARGET.<process>-<n>.part. Does not create the file; the destructor removes it
/// if it exists.
class UnfinishedFile {
  public:
    explicit UnfinishedFile(const std::filesystem::path& target);
    ~UnfinishedFile();
    UnfinishedFile(const UnfinishedFile&) = delete;
    UnfinishedFile& operator=(const UnfinishedFile&) = delete;
    const std::filesystem::path& path() const { return path_; }

  private:
    std::filesystem::path path_;
};

/// Renames a closed file to `path` after its bytes are on the disk (fsync). Throws Error(io).
void move_into_place(const std::filesystem::path& part, const std::filesystem::path& path);

}  // namespace keyhole
