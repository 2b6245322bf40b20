/// Copies of a session's state under a byte budget, so that rewinding need not start from the prompt. Session's thread; known to
/// session only.
#pragma once

#include "engine/session/lane.h"

#include <cstddef>
#include <vector>

namespace keyhole {

/// What changes while a session runs.
struct SessionState {
    std::vector<Lane> lanes;
    int next_lane_id = 0;
    bool follow = false;
    Sampling sampling;
    int row = -1;                             ///< last row processed
    std::vector<int> forced;                  ///< that the next rows consume, in order
    std::vector<int> history;                 ///< tokens that the reference lane consumed in decode rows
    std::vector<std::string> commands_since;  ///< since the last record

    SessionState copy() const;
    std::size_t bytes() const;
};

/// States right after a row, before any command. Over the budget every second one goes and the spacing doubles.
class Checkpoints {
  public:
    explicit Checkpoints(std::size_t budget_bytes) : budget_(budget_bytes) {}

    /// Keeps a copy when it is time for one.
    void offer(const SessionState& state);
    /// The latest one not after the row; null where there is none.
    const SessionState* latest(int row) const;
    void drop_after(int row);

  private:
    struct Kept {
        SessionState state;
        std::size_t bytes = 0;
    };
    std::size_t budget_;
    std::size_t bytes_ = 0;
    int spacing_ = 16;
    std::vector<Kept> kept_;  // ascending rows
};

}  // namespace keyhole
