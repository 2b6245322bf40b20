/// The run ahead of lanes that rank by `future`: a lane that keeps everything reads the same tokens to their
/// end, and its attention is summed. Runs once a prompt, and again where the text leaves the one that it
/// read. And the second pass of lanes that rank by `repeat`, once a prompt. Used on the session's thread, by
/// the session only.
#pragma once

#include "engine/policy/future.h"
#include "engine/policy/lane_spec.h"
#include "engine/run/command.h"
#include "engine/run/progress_part.h"

#include <memory>
#include <span>
#include <string>
#include <vector>

namespace keyhole {

struct RunContext;

/// Returns whether the lane needs the run ahead: its policy ranks by `future` and evicts.
bool needs_future(const PolicyParams& policy);
bool needs_future(const ResolvedPolicy& policy);

/// Returns whether the lane needs the prompt read a second time: its policy ranks by `repeat` and evicts.
bool needs_repeats(const PolicyParams& policy);
bool needs_repeats(const ResolvedPolicy& policy);
/// The most tokens of a prompt that are repeated at once.
inline constexpr int kRepeated = 2000;
/// Returns why a prompt cannot be read twice; empty: it can.
std::string repeats_fault(const RunContext& context);

/// Returns why a lane cannot know its text ahead; empty if it can: the lanes follow a lane 0 that keeps
/// everything, or the run's whole continuation is given.
std::string future_fault(const RunContext& context, bool follow, const LaneSpec& reference);

/// The tables of a session's runs ahead, the latest ones.
class LookAhead {
  public:
    /// Sets how the reference lane chooses its tokens: by the sampling of the row read last.
    void set_sampling(const Sampling& sampling) { sampling_ = sampling; }
    /// Returns the table for a lane's settings on a text that begins with `given` after the prompt. Runs
    /// ahead if it is not known yet. Cancelling `progress` throws Error(cancelled), here and below; then
    /// nothing is known that was not.
    std::shared_ptr<const FutureTable> table(const RunContext& context, const LaneSpec& spec,
                                             std::span<const int> given, const ProgressPart& progress = {});
    /// Returns what a second pass over the prompt finds for a lane's settings, reading `part` tokens of it at
    /// once. Runs it if it is not known yet.
    std::shared_ptr<const RepeatTable> repeats(const RunContext& context, const LaneSpec& spec,
                                               const ProgressPart& progress = {}, int part = kRepeated);

  private:
    struct Known {
        LaneSpec spec;
        Sampling sampling;
        std::vector<int> given;
        std::shared_ptr<const FutureTable> table;
    };
    Sampling sampling_;
    std::vector<Known> known_;  // the newest last
    std::vector<std::pair<LaneSpec, std::shared_ptr<const RepeatTable>>> repeats_;
};

}  // namespace keyhole
