/// Stores the live run on disk while the window is open, so that a crash loses nothing. It writes a spool
/// below the user's state folder, like the one that `decode --save` writes beside its file, and removes it
/// when the window closes. Spools that exist at the start were left by windows that crashed or were killed.
/// Window thread; a separate thread writes.
#pragma once

#include "engine/trace/recorder.h"

#include <condition_variable>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace keyhole {

class SpoolFolder;

class RunBackups {
  public:
    /// folder: of the spools; empty: nothing is stored or offered. most_bytes: limit of the run's spool, and
    /// of what waits to be written; above it the oldest rows lose their attention and scores, but keep
    /// tokens, evictions and measures.
    explicit RunBackups(std::filesystem::path folder, std::size_t most_bytes = std::size_t{256} << 20);
    /// Removes the run's spool, or keeps it as the last run; leaves it if the window ends by an exception.
    ~RunBackups();
    RunBackups(const RunBackups&) = delete;
    RunBackups& operator=(const RunBackups&) = delete;

    /// Queues the records that the live run added since the last call. Returns at once.
    void update(const StepList& steps);
    /// Waits until everything queued is on disk, or has failed. For tests.
    void wait();
    /// Returns the bytes of attention and scores that wait to be written.
    std::size_t waiting_bytes() const;
    /// Returns the run's spool; empty if none is written.
    std::filesystem::path spool() const;
    /// Returns once why the run is no longer stored; "" if it is.
    std::string take_fault();

    /// Runs that were open when Keyhole ended by a signal or a crash, newest first. No other program uses
    /// them.
    const std::vector<std::filesystem::path>& left() const { return left_; }
    /// Returns the model of a run and the beginning of its prompt: "keyhole-base, “Once upon a time…”";
    /// empty: its records cannot be read.
    static std::string words_of(const std::filesystem::path& spool);
    /// Removes a spool from the offered ones, because it was opened.
    void forget(const std::filesystem::path& spool);
    void discard(const std::filesystem::path& spool);
    /// Offers none until the next start; all stay on disk.
    void put_off() { left_.clear(); }

    /// Whether the run becomes the last run when the window ends, in place of the one before.
    void keep_as_last(bool keeps);
    /// Returns the spool of the last run of a window that ended by itself, or the trace that opening it made;
    /// empty: there is none.
    std::filesystem::path last() const;

  private:
    void find_left();
    void thin_waiting();
    void write_all(std::stop_token stop);
    void keep_last(SpoolFolder& spool) const;

    const std::filesystem::path folder_;
    const std::size_t most_bytes_;
    std::vector<std::filesystem::path> left_;
    std::uint64_t run_id_ = 0;                // of the records taken
    std::vector<std::pair<int, int>> taken_;  // row and branch of each, as the recorder has them
    std::vector<std::shared_ptr<const LaneInfo>> newest_infos_;  // of the lanes in the newest one

    mutable std::mutex mutex_;
    std::condition_variable_any changed_;
    std::deque<std::shared_ptr<const StepTrace>> waiting_;
    std::size_t waiting_bytes_ = 0;
    bool busy_ = false;
    bool keeps_ = true;  // false: writing failed once in this run
    std::filesystem::path spool_;
    std::string fault_;
    bool remove_ = false;   // remove the spool at the end
    bool is_last_ = false;  // or keep it as the last run
    std::jthread thread_;   // last: joins first
};

/// Returns the folder `runs` of UserFolder::state; empty if that is not known.
std::filesystem::path run_backups_folder();

}  // namespace keyhole
