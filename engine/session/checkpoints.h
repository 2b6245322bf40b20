/// Copies of a session's state under a byte budget, so that rewinding need not start from the prompt. Session's thread; known to
/// session only.
#pragma once

#include "engine/session/lane.h"

#include <cstddef>
#include <map>
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
    std::size_t bytes() const;  ///< without the models
};

/// States right after a row, before any command. Over the budget every second one goes and the spacing doubles. A model with merged
/// KV heads that no lane runs any more counts in the budget, its copy on a device too, as long as a state keeps it, once however many
/// do; where such models take more than half of it, the states that keep the largest go first.
class Checkpoints {
  public:
    /// base: the session's own model, which counts nowhere.
    Checkpoints(std::size_t budget_bytes, const Model* base) : budget_(budget_bytes), base_(base) {}

    /// Keeps a copy when it is time for one and it takes no more than a quarter of the budget.
    void offer(const SessionState& state);
    /// The latest one not after the row; null where there is none.
    const SessionState* latest(int row) const;
    void drop_after(int row);

    std::size_t count() const { return kept_.size(); }
    /// Of the states and of the models that they alone keep, `running` being what runs.
    std::size_t bytes(const SessionState& running) const;

  private:
    struct Kept {
        SessionState state;
        std::size_t bytes = 0;
    };
    std::size_t budget_;
    const Model* base_;
    int spacing_ = 16;
    std::vector<Kept> kept_;  // ascending rows

    std::map<const Model*, std::size_t> only_kept(const SessionState& running) const;
    void fit(const SessionState& running);
};

}  // namespace keyhole
