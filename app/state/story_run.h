/// What the window has done by itself for the story view: see refresh_story(). Plain values; window thread.
#pragma once

#include "engine/analysis/opening_head.h"
#include "engine/analysis/token_span.h"
#include "engine/policy/lane_spec.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace keyhole {

struct StoryRun {
    std::uint64_t answered = 0;   ///< RunInfo::id of the run whose answer was decoded; 0: none
    std::uint64_t looked_at = 0;  ///< of the run whose telling head and words were chosen
    /// What was chosen. A user who looks elsewhere since goes on to see that in runs of the same prompt.
    std::optional<HeadPlace> head;
    std::optional<TokenSpan> words;
    std::string prompt;  ///< of that run
    /// The lanes when the story was last on show: those that change while it is run again from the prompt.
    std::vector<LaneSpec> lanes;
    bool follow = false;
    bool on_show = false;  ///< in the last refresh
};

}  // namespace keyhole
