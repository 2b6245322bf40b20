/// The folder NAME.spool, which holds the records of a run in progress: frames.bin, and trace.part while a
/// trace file is being made. One program at a time uses it, on one thread. No file that is not its own is
/// ever removed. SpoolFolder writes one, FoundSpool reads what another run left.
#pragma once

#include "engine/base/path_lock.h"
#include "engine/trace/record.h"

#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

class SpoolFolder {
  public:
    /// Makes the folder if there is none, and locks it. Throws Error(io) if another program uses it, or if it
    /// contains foreign files.
    explicit SpoolFolder(std::filesystem::path path);
    /// Keeps what was appended. Without records it removes its own files, and the folder that it made.
    ~SpoolFolder();
    SpoolFolder(const SpoolFolder&) = delete;
    SpoolFolder& operator=(const SpoolFolder&) = delete;

    const std::filesystem::path& path() const { return path_; }
    std::filesystem::path frames() const { return path_ / "frames.bin"; }
    std::filesystem::path part() const { return path_ / "trace.part"; }
    bool has_frames() const;

    /// Discards existing frames, so that append() can follow. Throws Error(io).
    void begin();
    /// Writes one record; it is in the file when the call returns. Rows of one run ascend; a row that came
    /// before invalidates the later ones. Returns the number of bytes written. Throws Error(io).
    std::size_t append(const StepTrace& step);
    /// Removes attention, scores and shadows from all but the newest records, whose frames take at most
    /// most_bytes. append() may follow. Returns the new size of the file. Throws Error(io), Error(bad_file).
    std::size_t thin(std::size_t most_bytes);
    /// Closes the file; no more records come. Throws Error(io).
    void end();
    /// Removes its own files, and the folder if nothing else is in it and it was not here, empty, before.
    void remove() noexcept;
    /// Renames the folder and unlocks it. The object must not be used afterwards.
    void put_aside(const std::filesystem::path& to);

  private:
    /// Where a frame is in the file.
    struct Place {
        std::size_t offset = 0, n_bytes = 0;
        int row = 0;
        bool is_light = false;  ///< without attention, scores and shadows
    };
    std::size_t thin_into(const std::filesystem::path& fresh, std::size_t most_bytes);

    std::filesystem::path path_;
    std::vector<Place> places_;           // of the frames that count, in their order
    std::shared_ptr<const RunInfo> run_;  // of the records
    std::size_t n_bytes_ = 0;             // of the file
    std::string buffer_;                  // of a frame: its memory is used again
    std::optional<PathLock> lock_;
    std::FILE* file_ = nullptr;
    std::uint64_t run_id_ = 0;
    bool begun_ = false;
    bool was_empty_ = false;  // somebody made the folder: it stays
};

/// A spool that an ended run left. Opening it changes nothing, and neither does its end: only remove() does,
/// which is called when the trace is in its place.
class FoundSpool {
  public:
    /// Locks the folder. Throws Error(bad_file) if it is no folder or holds no records, Error(io) if another
    /// program uses it. Foreign files beside the records stay where they are.
    explicit FoundSpool(std::filesystem::path path);

    std::filesystem::path frames() const { return path_ / "frames.bin"; }
    /// The name for a trace while it is written.
    std::filesystem::path part() const { return path_ / "trace.part"; }
    /// Removes the files of the run, and the folder if nothing else is in it.
    void remove() noexcept;

  private:
    std::filesystem::path path_;
    std::optional<PathLock> lock_;
};

/// Removes a spool that a run left before its first record: an empty folder, or one with files of Keyhole
/// alone and no records. Anything else stays.
void remove_spool_without_records(const std::filesystem::path& path) noexcept;

}  // namespace keyhole
