/// Eviction doctor: what must hold of a run with eviction, looked up in its records. Broken eviction shows here before it shows in a text.
/// Pure reading; window thread; knows no GL.
#pragma once

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
    std::string_view name;  ///< what must hold
    State state = State::unknown;
    std::string detail;  ///< of the first fault, or what was looked at, or why it cannot be told
};

/// Whether a lane's rows ascend and its tokens leave a head once, folded row by row: rows that were looked at are not looked at again.
class EvictionOrder {
  public:
    void update(const RunHistory& history, int lane);
    /// Of the rows up to this one.
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

/// Of a lane (index into history.lanes()) at a row; empty where it has no record.
std::vector<Finding> examine(const RunHistory& history, int lane, int row);
std::vector<Finding> examine(const RunHistory& history, int lane, int row, EvictionOrder& order);
/// True unless something is broken.
bool healthy(const std::vector<Finding>& findings);

/// The findings on all lanes at the shown row, kept until something changes: for what is always on show.
class DoctorWatch {
  public:
    struct Patient {
        std::vector<Finding> findings;  ///< empty: no record, or not examined yet
        int row = -1;                   ///< of the findings
    };

    /// lanes: an index into history.lanes() a card, -1: none. Examines what changed since, one lane after the other until the time is spent,
    /// at least one; while rows come or go by, a twentieth of the time.
    void update(const RunHistory& history, std::span<const int> lanes, int row, double budget_ms,
                bool rows_come);
    /// No lane waits for its examination.
    bool complete() const { return complete_; }
    std::int64_t n_examined() const { return n_examined_; }
    int n_cards() const { return static_cast<int>(cards_.size()); }
    const Patient& of(int card) const { return cards_[static_cast<std::size_t>(card)].patient; }

    /// An invariant is broken where a lane breaks it, and holds where one can tell and none breaks it.
    struct Verdict {
        int n_hold = 0, n_unknown = 0, n_broken = 0;
        int card = -1;     ///< first one with a fault
        Finding fault;     ///< its first
        std::string each;  ///< all invariants, a line each
    };
    Verdict verdict() const;

  private:
    struct Card {
        Patient patient;
        EvictionOrder order;
        std::uint64_t generation = 0;
        int lane = -1;
        bool last = false;  ///< no row followed: commands may still evict after it
    };
    std::vector<Card> cards_;
    std::size_t next_ = 0;
    bool complete_ = true;
    std::int64_t n_examined_ = 0;
    std::chrono::steady_clock::time_point not_before_{};
};

}  // namespace keyhole
