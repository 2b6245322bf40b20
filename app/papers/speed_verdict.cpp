#include "app/papers/figure.h"
#include "engine/base/number.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

namespace keyhole {

namespace {

using State = PaperVerdict::State;
/// What a number may have been before the paper rounded it: "17.0" was 16.95 to 17.05.
struct Printed {
    double low = 0, value = 0, high = 0;
};

/// Returns nullopt for "-", "OOM" and words. 1 is what the others are given in, and exact.
std::optional<Printed> printed(std::string_view text) {
    const auto value = number_from_text<double>(text, 0);
    if (!value) return std::nullopt;
    if (*value == 1) return Printed{1, 1, 1};
    const std::size_t dot = text.find('.');
    const auto digits = static_cast<double>(dot == std::string_view::npos ? 0 : text.size() - dot - 1);
    const double half = 0.5 * std::pow(10, -digits);
    return Printed{*value - half, *value, *value + half};
}

const SpeedLine* line_of(std::span<const SpeedLine> lines, std::string_view label) {
    const auto at =
        std::find_if(lines.begin(), lines.end(), [&](const SpeedLine& line) { return line.label == label; });
    return at == lines.end() ? nullptr : &*at;
}

/// Returns what the paper prints for the last line over the first.
std::optional<Printed> paper_ratio(std::span<const SpeedLine> lines) {
    const auto first = printed(lines.front().printed), last = printed(lines.back().printed);
    if (!first || !last || !(first->low > 0)) return std::nullopt;
    return Printed{last->low / first->high, last->value / first->value, last->high / first->low};
}

/// One time has no interval, so that it is said and not judged. What the bytes do not allow cannot be seen.
PaperVerdict judge_ratio(std::span<const SpeedLine> lines) {
    const std::optional<Printed> paper = paper_ratio(lines);
    if (!paper) return {};
    const SpeedLine &first = lines.front(), &last = lines.back();
    return {last.by_bytes < paper->low ? State::unseen : State::measured,
            fmt::format("{} gives {:.2f} times the tokens a second of {} (paper {:.2f}); the bytes that a "
                        "step reads would allow {:.2f}.",
                        last.label, last.tokens_per_s / first.tokens_per_s, first.label, paper->value,
                        last.by_bytes)};
}

/// Bytes are counted, not measured: they need no interval.
PaperVerdict judge_batch(std::span<const SpeedLine> lines) {
    const std::optional<Printed> paper = paper_ratio(lines);
    const double first = lines.front().n_lanes_that_fit, last = lines.back().n_lanes_that_fit;
    if (!paper || !(first > 0)) return {};
    return {last / first >= paper->low ? State::holds : State::fails,
            fmt::format("12 GB hold {:.1f} times as many lanes with {} as with {} (paper {:.1f}).",
                        last / first, lines.back().label, lines.front().label, paper->value)};
}

/// Sharing across layers against sharing within layers, with as many KV heads.
PaperVerdict judge_sharing(std::span<const SpeedLine> lines) {
    std::string text;
    for (const auto& [across, within] : {std::pair{"MLKV-48", "GQA-48"}, std::pair{"MLKV-12", "MQA-12"}}) {
        const SpeedLine *a = line_of(lines, across), *b = line_of(lines, within);
        if (a == nullptr || b == nullptr) continue;
        const double ratio = a->tokens_per_s / b->tokens_per_s;
        text += fmt::format("{}{} gives {:.2f} times the tokens a second of {}", text.empty() ? "" : ", ",
                            across, ratio, within);
    }
    if (text.empty()) return {};
    return {State::measured, text + "."};
}

PaperVerdict judge_parts(std::span<const SpeedLine> lines) {
    const SpeedLine &first = lines.front(), &last = lines.back();
    if (!(first.attention_ms > 0 && last.attention_ms > 0)) return {};
    const double share = first.attention_ms / first.step_ms;
    return {
        share > 0.5 ? State::measured : State::unseen,
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
