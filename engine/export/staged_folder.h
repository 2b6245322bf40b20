/// A folder whose new contents are made aside and moved in together, so that an export that does not come to
/// its end leaves the one before as it was. One thread; knows base only.
#pragma once

#include "engine/base/path_lock.h"

#include <filesystem>
#include <optional>

namespace keyhole {

class StagedFolder {
  public:
    /// Makes the folder, and `export.part` in it, which a killed program may have left there. No other
    /// program writes an export to the folder meanwhile. Throws Error(io).
    explicit StagedFolder(std::filesystem::path folder);
    /// Without publish() everything that was made goes.
    ~StagedFolder();
    StagedFolder(const StagedFolder&) = delete;
    StagedFolder& operator=(const StagedFolder&) = delete;

    /// What is to come into the folder is written below this path.
    const std::filesystem::path& path() const { return part_; }

    /// Moves every file into the folder, over a file of its name there. `last` names a file that says what
    /// the folder holds: the old one is taken away before anything else changes, and the new one, or the old
    /// one where none was made, comes after all else. Throws Error(io).
    void publish(const std::filesystem::path& last);

  private:
    void move_in(const std::filesystem::path& from, const std::filesystem::path& to) const;

    std::filesystem::path folder_, part_;
    bool made_ = false;  // the folder is new
    std::optional<PathLock> lock_;
};

}  // namespace keyhole
