/// Replays single lanes from the prompt, beside the lanes of the session, which do not change. Used on the
/// session's thread, by the session only.
#pragma once

#include "engine/session/lane_runner.h"

#include <functional>
#include <span>

namespace keyhole {

class LaneReplay {
  public:
    /// row: the last one processed. All references must outlive this object. Cancelling `progress` throws
    /// Error(cancelled).
    LaneReplay(const LaneRunner& runner, const Sampling& sampling, int row, const ProgressPart& progress)
        : runner_(runner), sampling_(sampling), row_(row), progress_(progress) {}

    /// Returns a new lane that has read the prompt and then the reference lane's tokens. history: those of
    /// all decode rows.
    Lane joined(const LaneInfo& identity, const LaneSpec& spec, const LaneState& reference,
                std::span<const int> history) const;

    /// Returns a removed lane as it was, after it has also read the reference lane's tokens of the rows that
    /// it missed. history: as above. Pending are the evictions that no record contains.
    Lane restored(const LaneState& past, const LaneState& reference, std::span<const int> history) const;

    /// Returns the lane as if it had kept a shadow from the start, with its own tokens and commands. Throws
    /// Error(unsupported) if it then keeps other tokens.
    Lane with_shadow(const Lane& lane, bool shadow) const;

    /// Returns the lane with what only a run from the prompt can change: its KV heads shared as the spec
    /// says, which is another model, and in a lane that failed also the type of K and V. Its own tokens are
    /// forced, then the reference lane's of the rows that it missed (history, as in restored()), with its
    /// commands at their rows. Readers see a new lane, a copy of the old one up to this row. Throws
    /// Error(wrong_use) if the lane's past cannot run in this way.
    Lane from_prompt(const Lane& lane, const LaneSpec& spec, std::span<const int> history, int new_id) const;

  private:
    using Change = std::function<void(LaneSpec&)>;

    Lane replayed(const LaneInfo& identity, const LaneSpec& initial_spec, std::span<const int> tokens,
                  std::span<const LoggedCommand> commands, const Change& change) const;

    const LaneRunner& runner_;
    const Sampling& sampling_;
    int row_;
    const ProgressPart& progress_;
};

}  // namespace keyhole
