#include "app/cli/figures/figure.h"
#include "engine/base/number.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace keyhole {

namespace {

using State = PaperVerdict::State;
constexpr double kNear = 0.9;  // of what the paper reaches

const SpeedLine* line_of(std::span<const SpeedLine> lines, std::string_view label) {
    const auto at =
        std::find_if(lines.begin(), lines.end(), [&](const SpeedLine& line) { return line.label == label; });
    return at == lines.end() ? nullptr : &*at;
}

/// Returns what the paper prints for the last line over the first.
std::optional<double> paper_ratio(std::span<const SpeedLine> lines) {
    const auto first = number_from_text<double>(lines.front().printed, 0),
               last = number_from_text<double>(lines.back().printed, 0);
    if (!first || !last || !(*first > 0)) return std::nullopt;
    return *last / *first;
}

PaperVerdict judge_ratio(std::span<const SpeedLine> lines) {
    const std::optional<double> paper = paper_ratio(lines);
    if (!paper) return {};
    const SpeedLine &first = lines.front(), &last = lines.back();
    const double ours = last.tokens_per_s / first.tokens_per_s;
    const State state = ours >= kNear * *paper           ? State::holds
                        : last.by_bytes < kNear * *paper ? State::unseen
                                                         : State::fails;
    return {state,
            fmt::format("{} gives {:.2f} times the tokens a second of {} (paper {:.2f}); the bytes that a "
                        "step reads would allow {:.2f}.",
                        last.label, ours, first.label, *paper, last.by_bytes)};
}

PaperVerdict judge_batch(std::span<const SpeedLine> lines) {
    const std::optional<double> paper = paper_ratio(lines);
    const double first = lines.front().n_lanes_that_fit, last = lines.back().n_lanes_that_fit;
    if (!paper || !(first > 0)) return {};
    return {last >= kNear * *paper * first ? State::holds : State::fails,
            fmt::format("12 GB hold {:.0f} times as many lanes with {} as with {} (paper {:.0f}).",
                        last / first, lines.back().label, lines.front().label, *paper)};
}

/// Sharing across layers against sharing within layers, with as many KV heads.
PaperVerdict judge_sharing(std::span<const SpeedLine> lines) {
    constexpr double kSame = 1.05;
    std::string text;
    bool faster = false;
    for (const auto& [across, within] : {std::pair{"MLKV-48", "GQA-48"}, std::pair{"MLKV-12", "MQA-12"}}) {
        const SpeedLine *a = line_of(lines, across), *b = line_of(lines, within);
        if (a == nullptr || b == nullptr) continue;
        const double ratio = a->tokens_per_s / b->tokens_per_s;
        faster = faster || ratio > kSame;
        text += fmt::format("{}{} gives {:.2f} times the tokens a second of {}", text.empty() ? "" : ", ",
                            across, ratio, within);
    }
    if (text.empty()) return {};
    return {faster ? State::fails : State::holds, text + "."};
}

PaperVerdict judge_parts(std::span<const SpeedLine> lines) {
    const SpeedLine &first = lines.front(), &last = lines.back();
    if (!(first.attention_ms > 0 && last.attention_ms > 0)) return {};
    const double share = first.attention_ms / first.step_ms;
    return {
        share >= 0.5 ? State::holds : State::unseen,
        fmt::format("attention takes {:.0f} % of a step of {}; {} makes it {:.1f} times as fast (paper, at "
                    "4k: movement 2.9, products 1.3).",
                    100 * share, first.label, last.label, first.attention_ms / last.attention_ms)};
}

}  // namespace

PaperVerdict judge_speed(std::string_view table, std::span<const SpeedLine> lines) {
    if (lines.size() < 2) return {};
    if (table == "mlkv-figure3") return judge_batch(lines);
    if (table == "mlkv-figure5") return judge_sharing(lines);
    if (table == "keyformer-figure10") return judge_parts(lines);
    return judge_ratio(lines);
}

}  // namespace keyhole
