/// Eviction doctor: checks in a run's records the invariants of a run with eviction. Broken eviction shows
/// here before it shows in a text. Only reads the history; used on the window's thread; knows no GL.
#pragma once

#include "engine/base/index.h"
#include "engine/trace/run_history.h"

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

struct Finding {
    enum class State { good, broken, unknown };
    std::string_view name;  ///< the invariant
    State state = State::unknown;
    std::string detail;  ///< the first fault, or what was checked, or why it is unknown
};

/// Checks that a lane's rows ascend and that a token leaves a head only once. Works row by row, so that no
/// row is checked twice.
class EvictionOrder {
  public:
    void update(const RunHistory& history, int lane);
    /// Returns the finding on the rows up to this one.
    Finding at(const RunHistory& history, int row) const;

  private:
    std::uint64_t generation_ = 0;
    int lane_ = -1;
    std::size_t n_seen_ = 0;
    int before_ = -1;
    std::vector<std::vector<bool>> gone_;  // [kv_head][position]
    int fault_row_ = -1;
    std::string fault_;
};

/// Checks a lane (index into history.lanes()) at a row. The result is empty if the lane has no record there.
std::vector<Finding> examine(const RunHistory& history, int lane, int row);
std::vector<Finding> examine(const RunHistory& history, int lane, int row, EvictionOrder& order);
/// Returns whether nothing is broken.
bool healthy(const std::vector<Finding>& findings);

/// Keeps the findings on all lanes at the shown row up to date, for a permanent display.
class DoctorWatch {
  public:
    struct LaneFindings {
        std::vector<Finding> findings;  ///< empty: no record, or not checked yet
        int row = -1;                   ///< row of the findings
    };

    /// Checks what changed since the last call, lane by lane until budget_ms is spent, at least one lane.
    /// lanes: indices into history.lanes(), -1: not there. rows_come: rows are being decoded or
    /// scrolled; at most a twentieth of the time is then used.
    void update(const RunHistory& history, std::span<const int> lanes, int row, double budget_ms,
                bool rows_come);
    /// Returns whether no lane waits for its check.
    bool complete() const { return complete_; }
    std::int64_t n_examined() const { return n_examined_; }
    int n_lanes() const { return static_cast<int>(watched_.size()); }
    /// lane: its place among the lanes of the last update().
    const LaneFindings& of(int lane) const { return watched_[to_index(lane)].checked; }

    /// Over all lanes: an invariant is broken if any lane breaks it, and holds if it is known for some lane
    /// and broken for none.
    struct Verdict {
        int n_hold = 0, n_unknown = 0, n_broken = 0;
        int lane = -1;     ///< first lane with a fault
        Finding fault;     ///< that lane's first fault
        std::string each;  ///< all invariants, one per line
    };
    Verdict verdict() const;

  private:
    struct Watched {
        LaneFindings checked;
        EvictionOrder order;
        std::uint64_t generation = 0;
        int lane = -1;
        bool last = false;  ///< no row followed yet: commands may still evict after this row
    };
    std::vector<Watched> watched_;
    std::size_t next_ = 0;
    bool complete_ = true;
    std::int64_t n_examined_ = 0;
    std::chrono::steady_clock::time_point not_before_{};
};

}  // namespace keyhole
