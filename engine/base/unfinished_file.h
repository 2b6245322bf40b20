/// A file that is made beside its place and takes it when it is whole. One owner; knows base only.
#pragma once

#include <filesystem>

namespace keyhole {

/// A name beside the target, TARGET.<process>-<n>.part. The file, where somebody makes it, goes with the
/// object.
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

/// Renames a closed file over `path`, after its bytes are on the disk. Throws Error(io).
void move_into_place(const std::filesystem::path& part, const std::filesystem::path& path);

}  // namespace keyhole
