/// The part of a session that changes from row to row. It is a value: a checkpoint is a copy, and a rewind
/// replaces the whole. Used on the session's thread, by the session only.
#pragma once

#include "engine/session/lane.h"

#include <cstddef>
#include <string>
#include <vector>

namespace keyhole {

/// A removed lane: what it takes to run it again.
struct RemovedLane {
    int index = 0;  ///< that it had
    LaneState past;
};

struct SessionState {
    std::vector<Lane> lanes;
    std::vector<RemovedLane> removed;  ///< in the order of their removal
    int next_lane_id = 0;
    bool follow = false;
    Sampling sampling;
    int row = -1;                             ///< last row processed
    std::vector<std::string> to_say;          ///< texts for the ends of answers (SayText::after), in order
    std::vector<int> history;                 ///< tokens that the reference lane consumed in decode rows
    std::vector<std::string> commands_since;  ///< applied since the last record

    SessionState copy() const;
    std::size_t bytes() const;  ///< without the models
    /// Returns the last row of the latest turn that a user said to any lane; -1: the prompt.
    int turn_end() const;
    /// Returns next_lane_id. Throws Error(wrong_use) if the run has had kMostLanes.
    int id_for_new_lane() const;
    /// Returns a lane by its index. Throws Error(wrong_use) if there is none.
    Lane& lane_at(int index);
    const Lane& lane_at(int index) const;
    /// Resets what a record would take from the lanes, without making a record.
    void discard_outputs();
};

}  // namespace keyhole
