/// The answers that lanes gave by themselves, and what the window knew of the prompt, as text for a trace
/// file (answers.json). A run whose lanes followed lane 0 has no other record of their answers. Any thread.
#pragma once

#include "engine/analysis/token_span.h"
#include "engine/run/answer.h"

#include <optional>
#include <string>
#include <vector>

namespace keyhole {

struct TraceAnswers {
    std::vector<LaneAnswer> answers;        ///< complete ones, without LaneAnswer::stored
    std::string right;                      ///< the right answer to the prompt; empty: not known
    std::optional<TokenSpan> watched = {};  ///< words that the window watched
    bool operator==(const TraceAnswers&) const = default;
};

/// Returns an empty text if there is nothing to keep.
std::string format_trace_answers(const TraceAnswers& answers);
/// text: empty: no answers. name: of the file, for messages. Throws Error(bad_file).
TraceAnswers parse_trace_answers(const std::string& text, const std::string& name);

}  // namespace keyhole
