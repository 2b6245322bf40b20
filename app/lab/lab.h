/// The lab of assets/lab: six exercises, with numbers of each student's own that follow from the name. Any
/// thread; knows models and tasks, no backend.
#pragma once

#include "engine/eval/evaluate.h"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace keyhole {

inline constexpr int kExercises = 6;
inline constexpr int kHiddenQuestions = 20;  ///< of exercises 4 to 6
inline constexpr int kHiddenContext = 256;   ///< tokens of such a question and its answer
inline constexpr int kLeastRight = 14;       ///< right answers that exercise 5 asks for
inline constexpr double kNearPercent = 25;   ///< points that a prediction of exercise 4 may be off

/// Returns what exercise 1 to 6 is about: "what is stored".
std::string_view exercise_title(int exercise);

/// Returns a name as it is kept and shown: printable, with single blanks. Throws Error(wrong_use) if nothing
/// is left of it, or if it has more than 80 bytes.
std::string student_name(std::string_view typed);
/// Returns the seed of a student, 1 to 999,999,999; it does not depend on upper and lower case (ASCII).
std::uint64_t seed_of_name(std::string_view name);
/// Returns the seed of the hidden questions. salt: what only the teacher knows; may be empty.
std::uint64_t hidden_seed(std::uint64_t seed, std::string_view salt);

/// What differs from student to student.
struct StudentNumbers {
    std::uint64_t seed = 0;
    std::string prompt;               ///< of exercises 1 to 3, and of the bytes and tokens in 5 and 6
    std::string code;                 ///< stands in the prompt
    int n_prompt = 0;                 ///< tokens, begin-of-text included
    int n_steps = 0;                  ///< decoded after it
    int window_budget = 0;            ///< exercise 1
    int sink_budget = 0;              ///< exercise 2
    int n_sinks = 0;                  ///< exercise 2
    int budget = 0;                   ///< exercises 4 and 6
    int most_percent = 0;             ///< exercise 5: of the bytes of the full cache
    std::string window_lane() const;  ///< exercise 1
    std::string sink_lane() const;    ///< exercise 2
};
/// Draws the numbers. Throws Error(wrong_use) if the model's context is too short for the prompt.
StudentNumbers student_numbers(const Model& model, const TaskTexts& texts, std::uint64_t seed);

/// Returns the question of exercise 1 to 6, with the student's numbers.
std::string exercise_question(int exercise, const StudentNumbers& numbers);

}  // namespace keyhole
