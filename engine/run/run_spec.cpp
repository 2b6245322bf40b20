#include "engine/run/run_spec.h"

#include "engine/base/error.h"
#include "engine/base/json_text.h"

namespace keyhole {

std::vector<KvLayout> layouts_of(const Model& model, const std::vector<LaneSpec>& lanes) {
    std::vector<KvLayout> layouts;
    for (const LaneSpec& lane : lanes) layouts.push_back(layout_of(model.config(), lane.sharing));
    return layouts;
}

RunSpec run_spec_of(const RunInfo& run, std::span<const RunCommand> commands) {
    RunSpec spec;
    spec.prompt = run.prompt;
    if (run.start.tokens_given) spec.prompt_tokens = run.prompt_tokens;
    spec.forced = run.start.forced;
    for (const std::string& lane : run.start.lanes) spec.lanes.push_back(parse_lane_spec(lane));
    if (!run.start.sampling.empty()) {
        const Command command = parse_command(run.start.sampling);
        if (!std::holds_alternative<SetSampling>(command))
            fail(ErrorCode::bad_file,
                 "the run's start has '{}' for its sampling, wanted sampling KEY=VALUE ...",
                 shown_text(run.start.sampling));
        spec.sampling = std::get<SetSampling>(command).sampling;
    }
    spec.seed = run.seed;
    spec.follow = run.start.follow;
    spec.ignore_eos = run.start.ignore_eos;
    spec.chat = !run.start.chat.empty();
    spec.n_generate = run.n_generate;
    spec.right_answer = run.start.right_answer;
    spec.watch = run.start.watch;
    spec.looks = run.start.looks;
    for (const RunCommand& command : commands)
        spec.commands.push_back({command.row, parse_command(command.text)});
    return spec;
}

}  // namespace keyhole
