#include "engine/trace/lane_failure.h"

#include "engine/base/error.h"
#include "engine/base/json_text.h"

namespace keyhole {

std::vector<std::string> lane_failures(const StepTrace& step) {
    std::vector<std::string> lines;
    for (std::size_t i = 0; i < step.lanes.size(); ++i)
        if (const LaneRecord& lane = step.lanes[i]; !lane.failure.empty())
            lines.push_back(fmt::format("lane {} '{}' failed: {}", i, shown_text(lane.info->spec),
                                        shown_text(lane.failure)));
    return lines;
}

void throw_if_failed(const StepTrace& step) {
    if (const std::vector<std::string> lines = lane_failures(step); !lines.empty())
        fail(ErrorCode::unsupported, "{}", lines.front());
}

}  // namespace keyhole
