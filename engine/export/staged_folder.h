/// A folder whose new contents are written aside and moved in together, so that an unfinished export leaves
/// the previous one as it was. One thread; knows base only.
#pragma once

#include "engine/base/path_lock.h"

#include <filesystem>
#include <optional>

namespace keyhole {

class StagedFolder {
  public:
    /// Makes the folder, and `export.part` in it, which a killed program may have left there. No other
    /// program can write an export to the folder meanwhile. Throws Error(io).
    explicit StagedFolder(std::filesystem::path folder);
    /// Removes everything that was made, unless publish() was called.
    ~StagedFolder();
    StagedFolder(const StagedFolder&) = delete;
    StagedFolder& operator=(const StagedFolder&) = delete;

    /// New contents of the folder are written below this path.
    const std::filesystem::path& path() const { return part_; }

    /// Moves every file into the folder and replaces files of the same name. last: a file that describes the
    /// folder. Its old version is moved away before anything else changes. Its new version, or the old one if
    /// none was made, comes after all other files. Throws Error(io).
    void publish(const std::filesystem::path& last);

  private:
    void move_in(const std::filesystem::path& from, const std::filesystem::path& to) const;

    std::filesystem::path folder_, part_;
    bool made_ = false;  // the folder is new
    std::optional<PathLock> lock_;
};

}  // namespace keyhole
