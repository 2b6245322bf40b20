/// Says what commands do to the settings of a run: its lanes, follow and sampling. The session and the window
/// both ask here, so that they cannot disagree.
#pragma once

#include "engine/run/command.h"
#include "engine/run/run_spec.h"

#include <limits>
#include <span>
#include <vector>

namespace keyhole {

inline constexpr int kWholeLog = std::numeric_limits<int>::max();

/// A lane with an id from its place in the log. The id tells it from an earlier lane at the same index.
struct LoggedLane {
    int id = 0;
    LaneSpec spec;
};

struct RunSettings {
    std::vector<LoggedLane> lanes;
    bool follow = false;
    Sampling sampling;

    std::vector<LaneSpec> lane_specs() const;
};

/// Returns the settings of a run after its logged commands, or those that a rewind to `row` would restore:
/// the rewind undoes the commands stamped with that row.
RunSettings settings_at(const RunSpec& run, int row = kWholeLog);

/// Returns the commands that, after a rewind to `row`, restore `lanes`, `follow` and the current sampling;
/// empty if they did not change since. Lanes added since are added anew and read the text up to the row.
std::vector<Command> settings_since(const RunSpec& run, int row, std::span<const LaneSpec> lanes,
                                    bool follow);

}  // namespace keyhole
