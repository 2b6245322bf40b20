/// Copies of a session's state under a byte budget, so that a rewind need not start from the prompt. Used on
/// the session's thread, by the session only.
#pragma once

#include "engine/session/session_state.h"

#include <cstddef>
#include <map>
#include <vector>

namespace keyhole {

/// Keeps states as they were right after a row, before any command. When they exceed the budget, every second
/// state is dropped and the spacing doubles. The budget also counts models with merged KV heads that no
/// running lane uses but a state keeps, including their copies on a device, each once. If such models take
/// more than half of the budget, the states that keep the largest one are dropped first.
class Checkpoints {
  public:
    /// base: the session's own model, which is not counted.
    Checkpoints(std::size_t budget_bytes, const Model* base) : budget_(budget_bytes), base_(base) {}

    /// Keeps a copy if the spacing since the last one is reached and the copy takes at most a quarter of the
    /// budget.
    void offer(const SessionState& state);
    /// Returns the latest state at or before the row; null if there is none.
    const SessionState* latest(int row) const;
    void drop_after(int row);

    std::size_t count() const { return kept_.size(); }
    /// Returns the bytes of the states and of the models that only they keep. running: the current state.
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
