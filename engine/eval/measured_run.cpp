#include "engine/eval/measured_run.h"

namespace keyhole {

RunSpec measured_run(const Question& question, std::span<const LaneSpec> lanes) {
    RunSpec spec;
    spec.prompt_tokens = question.prompt;
    spec.forced = question.asked;
    spec.forced.insert(spec.forced.end(), question.fed.begin(), question.fed.end());
    for (const LaneSpec& lane : lanes) spec.lanes.push_back(changed_lane_spec(lane, "shadow=on"));
    spec.n_generate = static_cast<int>(spec.forced.size());
    spec.ignore_eos = true;
    spec.n_top = 0;
    spec.requested.attention = true;
    spec.requested.shadow = true;
    return spec;
}

}  // namespace keyhole
