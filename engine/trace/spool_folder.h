/// The folder that holds the records of a run while it goes on, NAME.spool: frames.bin, and trace.part while
/// a trace is made of them. One program at a time uses it, and nothing in it but its own files is ever
/// removed. One thread.
#pragma once

#include "engine/base/path_lock.h"
#include "engine/trace/record.h"

#include <cstdio>
#include <filesystem>
#include <optional>

namespace keyhole {

class SpoolFolder {
  public:
    /// Makes the folder where there is none, and locks it. Throws Error(io) where another program uses it,
    /// and where it holds what is no spool's.
    explicit SpoolFolder(std::filesystem::path path);
    /// Leaves what was appended; an empty folder goes.
    ~SpoolFolder();
    SpoolFolder(const SpoolFolder&) = delete;
    SpoolFolder& operator=(const SpoolFolder&) = delete;

    const std::filesystem::path& path() const { return path_; }
    std::filesystem::path frames() const { return path_ / "frames.bin"; }
    std::filesystem::path part() const { return path_ / "trace.part"; }
    bool has_frames() const;

    /// Drops what is there; append() follows. Throws Error(io).
    void begin();
    /// Records of one run in ascending rows, in the file when it returns; after a row that came already the
    /// later ones no longer count. Returns the bytes. Throws Error(io).
    std::size_t append(const StepTrace& step);
    /// Takes attention, scores and shadows from the oldest records until the others take so many bytes;
    /// append() goes on. Returns the bytes that are left. Throws Error(io), Error(bad_file).
    std::size_t thin(std::size_t most_bytes);
    /// No more come. Throws Error(io).
    void end();
    /// Its files and the folder, as far as nothing else is in it.
    void remove() noexcept;
    /// Under another name, unlocked; the object is of no more use.
    void put_aside(const std::filesystem::path& to);

  private:
    std::size_t append_to(const std::filesystem::path& file, const StepTrace& step);

    std::filesystem::path path_;
    std::optional<PathLock> lock_;
    std::FILE* file_ = nullptr;
    std::uint64_t run_id_ = 0;
    bool begun_ = false;
};

}  // namespace keyhole
