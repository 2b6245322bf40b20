#include "app/lessons/typed_prediction.h"

#include "engine/base/index.h"
#include "engine/base/number.h"

#include <fmt/format.h>

#include <cmath>

namespace keyhole {

std::string prediction_form(const Prediction& asked) {
    switch (asked.kind) {
        case Prediction::Kind::choice:
            return fmt::format("a number from 1 to {}", asked.choices.size());
        case Prediction::Kind::slider:
            return fmt::format("a number from {} to {}", asked.low, asked.high);
        case Prediction::Kind::token:
            break;
    }
    return "";
}

std::optional<double> typed_prediction(const Prediction& asked, std::string_view line) {
    while (!line.empty() && (line.front() == ' ' || line.front() == '\t')) line.remove_prefix(1);
    while (!line.empty() && (line.back() == ' ' || line.back() == '\t' || line.back() == '\r'))
        line.remove_suffix(1);
    if (asked.kind == Prediction::Kind::choice)
        return number_from_text<int>(line, 1, static_cast<int>(asked.choices.size()));
    if (asked.kind == Prediction::Kind::slider) return number_from_text<double>(line, asked.low, asked.high);
    return std::nullopt;
}

std::string prediction_truth(const Prediction& asked, std::span<const Claim> claims,
                             std::span<const Measured> measured) {
    if (asked.kind == Prediction::Kind::choice) return asked.choices[to_index(asked.right)];
    const std::size_t claim = to_index(asked.claim);
    if (asked.kind != Prediction::Kind::slider || claim >= measured.size()) return "";
    return measured_text(claims[claim], measured[claim]);
}

std::string prediction_answer(const Prediction& asked, std::optional<double> typed,
                              std::span<const Claim> claims, std::span<const Measured> measured) {
    const std::string truth = prediction_truth(asked, claims, measured);
    if (truth.empty()) return "";
    if (!typed) return fmt::format("It is: {}", truth);
    const bool right = asked.kind == Prediction::Kind::choice
                           ? static_cast<int>(*typed) == asked.right + 1
                           : std::abs(*typed - measured[to_index(asked.claim)].value) <=
                                 kNearPrediction * (asked.high - asked.low);
    return fmt::format("{} It is: {}", right ? "Your prediction was right." : "Not quite.", truth);
}

}  // namespace keyhole
