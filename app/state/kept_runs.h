/// The live run on disk while the window is open, so that a crash loses nothing: a spool below the user's
/// state folder, as `decode --save` has one beside its file. It goes when the window closes. Those that are
/// there at the start were left by windows that crashed or were killed. Window thread; the writing has a
/// thread of its own.
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

class KeptRuns {
  public:
    /// folder: where spools lie; empty: nothing is kept or offered. most_bytes: of the run's spool; above it
    /// the oldest rows lose their attention and scores, and keep tokens, evictions and measures.
    explicit KeptRuns(std::filesystem::path folder, std::size_t most_bytes = std::size_t{256} << 20);
    /// Removes the run's spool; leaves it where the window ends by an exception.
    ~KeptRuns();
    KeptRuns(const KeptRuns&) = delete;
    KeptRuns& operator=(const KeptRuns&) = delete;

    /// Takes the records that came since the last call, of the live run as the recorder has them. Returns at
    /// once.
    void update(const StepList& steps);
    /// Everything taken so far is on disk, or cannot be. For tests.
    void wait();
    /// Of the run, once there is one; empty: none is kept.
    std::filesystem::path spool() const;
    /// Why the run is no longer kept, once; "": it is.
    std::string take_fault();

    /// Runs that did not end, the newest first. No other program uses them.
    const std::vector<std::filesystem::path>& left() const { return left_; }
    /// No longer offered: it was opened.
    void forget(const std::filesystem::path& spool);
    void discard(const std::filesystem::path& spool);

  private:
    void find_left();
    void write_all(std::stop_token stop);

    const std::filesystem::path folder_;
    const std::size_t most_bytes_;
    std::vector<std::filesystem::path> left_;
    std::uint64_t run_id_ = 0;                // of the records taken
    std::vector<std::pair<int, int>> taken_;  // row and branch of each, as the recorder has them

    mutable std::mutex mutex_;
    std::condition_variable_any changed_;
    std::deque<std::shared_ptr<const StepTrace>> waiting_;
    bool busy_ = false;
    bool keeps_ = true;  // false: it failed once
    std::filesystem::path spool_;
    std::string fault_;
    bool remove_ = false;  // at the end
    std::jthread thread_;  // last: joins first
};

/// $XDG_STATE_HOME/keyhole/runs or as state_folder() says; empty when it is not known.
std::filesystem::path kept_runs_folder();

}  // namespace keyhole
