/// The answers that lanes gave by themselves, as text for a trace file (answers.json). A run whose lanes
/// followed lane 0 has no other record of them. Any thread.
#pragma once

#include "engine/run/answer.h"

#include <string>
#include <vector>

namespace keyhole {

struct TraceAnswers {
    std::vector<LaneAnswer> answers;  ///< complete ones, without LaneAnswer::stored
    std::string right;                ///< the right answer to the prompt; empty: not known
    bool operator==(const TraceAnswers&) const = default;
};

/// Returns an empty text if there are no complete answers.
std::string format_trace_answers(const TraceAnswers& answers);
/// text: empty: no answers. name: of the file, for messages. Throws Error(bad_file).
TraceAnswers parse_trace_answers(const std::string& text, const std::string& name);

}  // namespace keyhole
