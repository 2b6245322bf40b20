#include "app/cli/typed_prediction.h"

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

std::string prediction_answer(const Prediction& asked, std::optional<double> typed,
                              std::span<const Claim> claims, std::span<const Measured> measured) {
    std::string truth;
    bool right = false;
    if (asked.kind == Prediction::Kind::choice) {
        truth = asked.choices[to_index(asked.right)];
        right = typed && static_cast<int>(*typed) == asked.right + 1;
    } else if (asked.kind == Prediction::Kind::slider && to_index(asked.claim) < measured.size()) {
        const Measured& of_claim = measured[to_index(asked.claim)];
        truth = measured_text(claims[to_index(asked.claim)], of_claim);
        right = typed && std::abs(*typed - of_claim.value) <= kNearPrediction * (asked.high - asked.low);
    } else {
        return "";
    }
    if (!typed) return fmt::format("It is: {}", truth);
    return fmt::format("{} It is: {}", right ? "Your prediction was right." : "Not quite.", truth);
}

}  // namespace keyhole
