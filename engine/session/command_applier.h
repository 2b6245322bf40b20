/// Applies commands to a session's state between rows, whether new or replayed. Knows neither the log nor
/// branches: a rewind is the session's own. Used on the session's thread, by the session only.
#pragma once

#include "engine/session/lane_replay.h"

#include <vector>

namespace keyhole {

class CommandApplier {
  public:
    /// All references must outlive this object. progress: of one command; cancelling throws Error(cancelled).
    CommandApplier(const LaneRunner& runner, SessionState& state, const ProgressPart& progress)
        : runner_(runner),
          state_(state),
          progress_(progress),
          replay_(runner, state.sampling, state.row, progress) {}

    /// Applies any command but Rewind and GoToBranch. Throws Error(wrong_use) or Error(unsupported), and then
    /// the state has not changed.
    void apply(const Command& command);

  private:
    const LaneRunner& runner_;
    SessionState& state_;
    const ProgressPart& progress_;
    LaneReplay replay_;

    void set_lane(const SetLane& command);
    void add_lane(const AddLane& command);
    void check_text_goes_on() const;
    void remove_lane(const RemoveLane& command);
    void restore_lane(const RestoreLane& command);
    void fork_lane(const ForkLane& command);
    void check_future(const LaneSpec& spec, bool follow, const LaneSpec& reference) const;
    void set_sampling(const Sampling& sampling);
    void check_can_go_on(const Lane& lane, int index) const;
    bool needs_prompt(const Lane& lane, const LaneSpec& spec) const;
    void touch_token(const TokenPlace& at, const Command& command);
};

}  // namespace keyhole
