/// The answer of each lane to the prompt, by its own choices: marked right or wrong where the right answer is
/// known, compared with lane 0, and as a figure for a file. Any thread; knows no window.
#pragma once

#include "engine/figure/answers.h"
#include "engine/run/answer.h"
#include "engine/trace/run_history.h"

#include <optional>
#include <string>
#include <vector>

namespace keyhole {

inline constexpr const char* kSaysNothing = "(nothing)";  ///< in place of an answer without words

struct ShownAnswer {
    using Mark = AnswerLine::Mark;
    int lane = 0;               ///< as the lanes are listed
    LaneAnswer answer;          ///< empty and incomplete while the engine has not begun it
    std::vector<bool> differs;  ///< [token] lane 0's answer has another token there
    Mark mark = Mark::none;     ///< wrong only once the answer is complete
};

/// Returns what the lanes of a record chose after the prompt, in the order of its last step. Empty if they
/// were fed lane 0's tokens: the record then does not hold their own choices.
std::vector<ShownAnswer> answers_in_record(const RunHistory& history);
/// Returns what one of the lanes chose. lane: into history.lanes().
LaneAnswer answer_in_record(const RunHistory& history, int lane);

/// Returns the answer of a lane in a record that goes on; nullopt: it has no end yet, or the lane was fed a
/// token that it had not chosen. lane: as above.
std::optional<LaneAnswer> own_answer(const RunHistory& history, int lane);

/// Compares the answers with the first one, and with the right answer; right: empty if it is not known.
void mark_answers(std::vector<ShownAnswer>& answers, const std::string& right);

/// Draws marked answers. specs: the settings of each lane, in the same order. right: as above.
AnswersFigure answers_figure(const RunInfo& run, const std::vector<ShownAnswer>& answers,
                             const std::vector<std::string>& specs, const std::string& right);

}  // namespace keyhole
