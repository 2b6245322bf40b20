#include "app/actions/command_line.h"

#include "engine/base/index.h"

#include <fmt/format.h>

#include <algorithm>
#include <variant>

namespace keyhole {

namespace {

/// Returns whether tau rises over the horizon.
bool takes_horizon(const TauSchedule& tau, double tau_delta) {
    using Shape = TauSchedule::Shape;
    if (tau.begin == tau.end) return false;
    return tau.shape == Shape::cosine || (tau.shape == Shape::linear && !(tau_delta > 0));
}

/// Returns a lane that names the horizon of a run, if it has none of its own and depends on it.
LaneSpec with_horizon(LaneSpec lane, int horizon) {
    PolicyParams& policy = lane.policy;
    const bool takes = takes_horizon(policy.tau, policy.tau_delta) ||
                       std::any_of(policy.overrides.begin(), policy.overrides.end(), [&](const Override& o) {
                           return o.field == Override::Field::tau && takes_horizon(o.tau, policy.tau_delta);
                       });
    if (takes && policy.horizon == 0) policy.horizon = horizon;
    return lane;
}

Command with_horizon(Command command, int horizon) {
    std::visit(
        [&](auto& of) {
            if constexpr (requires { of.spec.policy; })
                of.spec = with_horizon(of.spec, horizon);
            else if constexpr (requires { of.spec->policy; })
                if (of.spec) of.spec = with_horizon(*of.spec, horizon);
        },
        command);
    return command;
}

}  // namespace

std::string decode_command(const std::filesystem::path& model, const RunSpec& run, int n_tokens,
                           const std::string& list, const std::filesystem::path& folder,
                           const std::string& extra, const BackendOptions& backend) {
    const int horizon = resolve({}, 1, run.n_generate).horizon;
    const bool differs = horizon != n_tokens;
    std::string text =
        "keyhole decode --model " + shell_word(model.string()) + " --prompt " + shell_word(run.prompt);
    for (const LaneSpec& lane : run.lanes)
        text += " --lane " + shell_word(format_lane_spec(differs ? with_horizon(lane, horizon) : lane));
    text += fmt::format(" --tokens {} --seed {}", n_tokens, run.seed);
    text += run.follow ? " --follow" : " --free";
    if (run.ignore_eos) text += " --ignore-eos";
    if (run.chat) text += " --chat";
    const Sampling greedy;
    // A script may set a temperature later.
    if (run.sampling != greedy && (run.sampling.temperature > 0 || !run.commands.empty()))
        text += fmt::format(" --temperature {} --top-k {} --top-p {}", run.sampling.temperature,
                            run.sampling.top_k, run.sampling.top_p);
    if (run.sampling.repetition_penalty != 1)
        text += fmt::format(" --repetition-penalty {}", run.sampling.repetition_penalty);
    if (run.sampling.no_repeat_ngram != 0)
        text += fmt::format(" --no-repeat-ngram {}", run.sampling.no_repeat_ngram);
    if (run.sampling.min_tokens != 0) text += fmt::format(" --min-tokens {}", run.sampling.min_tokens);
    if (backend.choice != BackendChoice::automatic)
        text += fmt::format(" --backend {}", kBackendWords[to_index(static_cast<int>(backend.choice))]);
    if (backend.precision != Precision::automatic)
        text +=
            fmt::format(" --precision {}", kPrecisionWords[to_index(static_cast<int>(backend.precision))]);
    if (backend.device != 0) text += fmt::format(" --device {}", backend.device);
    text += " --export " + list + " --out " + shell_word(folder.string());
    if (!extra.empty()) text += " " + extra;
    if (run.commands.empty()) return text;
    text += " --script <(printf '%s\\n'";
    for (const LoggedCommand& logged : run.commands)
        text += " " + shell_word(fmt::format(
                          "{} {}", logged.row,
                          format_command(differs ? with_horizon(logged.command, horizon) : logged.command)));
    return text + ")";
}

std::string_view gif_of_mode(HeatMode mode) {
    return mode == HeatMode::mask ? "gif-mask" : mode == HeatMode::score ? "gif-scores" : "gif-attention";
}

}  // namespace keyhole
