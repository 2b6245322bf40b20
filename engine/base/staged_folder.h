/// A folder whose new contents are written aside and moved in together: they replace what was written there
/// before as a whole, or the folder stays as it was. One thread; knows base only.
#pragma once

#include "engine/base/path_lock.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace keyhole {

class StagedFolder {
  public:
    /// Makes the folder, and `export.part` in it. If a killed program left a replacement half done, its old
    /// files go back first. No other program can write to the folder meanwhile. what: is written, for
    /// messages. lock: on the folder, if it is held already. Throws Error(io).
    explicit StagedFolder(std::filesystem::path folder, std::string what = "an export",
                          std::optional<PathLock> lock = std::nullopt);
    /// Removes everything that was made, unless publish() returned.
    ~StagedFolder();
    StagedFolder(const StagedFolder&) = delete;
    StagedFolder& operator=(const StagedFolder&) = delete;

    /// New contents of the folder are written below this path.
    const std::filesystem::path& path() const { return part_; }
    const std::filesystem::path& folder() const { return folder_; }
    /// Returns the files below path(), relative to it, in order.
    std::vector<std::string> files() const;

    /// Throws Error(io) if the disk has no room for so many bytes.
    void check_room(std::int64_t n_bytes) const;

    /// Throws Error(io), as publish() would later, if something that is not old is where one of these new
    /// files goes.
    void check_way(const std::vector<std::string>& fresh, const std::vector<std::string>& old) const;

    /// Moves every file of path() into the folder, in place of the files in `old`, which go: those of them
    /// that are there. All other files are the user's own: none is touched, and one that is in the way is an
    /// error. last: the file that describes the folder; it goes first and comes last. Empty folders are not
    /// moved. On a failure everything goes back to where it was. Throws Error(io).
    void publish(const std::vector<std::string>& old, const std::string& last);

  private:
    struct Moves;

    std::filesystem::path folder_, part_, aside_;
    std::string what_;
    bool made_ = false;  // the folder is new
    std::optional<PathLock> lock_;
};

/// Returns whether a relative name, read from a file, can be that of a file below a folder: it leads nowhere
/// else, and names no hidden file.
bool is_name_below(const std::string& name);

}  // namespace keyhole
