/// Predictions outside the window, typed in the terminal or written on paper: what is asked for, which lines
/// are one, and what is said to them.
/// Pure functions; any thread.
#pragma once

#include "app/lessons/lesson.h"
#include "app/lessons/lesson_claims.h"

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace keyhole {

/// A number is right within this part of its range, as in the window.
inline constexpr double kNearPrediction = 0.1;

/// Returns what is asked for, such as "a number from 1 to 3"; empty for a token, which only the window shows.
std::string prediction_form(const Prediction& asked);

/// Returns the number of a choice (from 1) or of a slider; nullopt: the line is no prediction.
std::optional<double> typed_prediction(const Prediction& asked, std::string_view line);

/// Returns what was to be predicted; empty for a token, and where it was not measured. claims, measured: of
/// the step.
std::string prediction_truth(const Prediction& asked, std::span<const Claim> claims,
                             std::span<const Measured> measured);

/// Returns the answer in one line, such as "Not quite. It is: Only one: TOVA". typed: nothing, if nobody was
/// asked. claims, measured: of the step.
std::string prediction_answer(const Prediction& asked, std::optional<double> typed,
                              std::span<const Claim> claims, std::span<const Measured> measured);

}  // namespace keyhole
