#include "app/actions/command_line.h"

#include <fmt/format.h>

namespace keyhole {

std::string shell_word(std::string_view text) {
    constexpr std::string_view kPlain =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=,@%+";
    if (!text.empty() && text.find_first_not_of(kPlain) == std::string_view::npos) return std::string(text);
    std::string out = "'";
    for (const char c : text) out += c == '\'' ? "'\\''" : std::string(1, c);
    return out + "'";
}

std::string decode_command(const std::filesystem::path& model, const RunSpec& run, int n_tokens,
                           const std::string& list, const std::filesystem::path& folder,
                           const std::string& extra) {
    std::string text =
        "keyhole decode --model " + shell_word(model.string()) + " --prompt " + shell_word(run.prompt);
    for (const LaneSpec& lane : run.lanes) text += " --lane " + shell_word(format_lane_spec(lane));
    text += fmt::format(" --tokens {} --seed {}", n_tokens, run.seed);
    text += run.follow ? " --follow" : " --free";
    if (run.ignore_eos) text += " --ignore-eos";
    if (run.chat) text += " --chat";
    const Sampling greedy;
    if (run.sampling != greedy)
        text += fmt::format(" --temperature {} --top-k {} --top-p {}", run.sampling.temperature,
                            run.sampling.top_k, run.sampling.top_p);
    if (run.sampling.repetition_penalty != 1)
        text += fmt::format(" --repetition-penalty {}", run.sampling.repetition_penalty);
    if (run.sampling.no_repeat_ngram != 0)
        text += fmt::format(" --no-repeat-ngram {}", run.sampling.no_repeat_ngram);
    if (run.sampling.min_tokens != 0) text += fmt::format(" --min-tokens {}", run.sampling.min_tokens);
    text += " --export " + list + " --out " + shell_word(folder.string());
    if (!extra.empty()) text += " " + extra;
    if (run.commands.empty()) return text;
    text += " --script <(printf '%s\\n'";
    for (const LoggedCommand& logged : run.commands)
        text += " " + shell_word(fmt::format("{} {}", logged.row, format_command(logged.command)));
    return text + ")";
}

std::string_view gif_of_mode(HeatMode mode) {
    return mode == HeatMode::mask ? "gif-mask" : mode == HeatMode::score ? "gif-scores" : "gif-attention";
}

}  // namespace keyhole
