/// What lanes still hold of each part of a prompt, its spans: system message, context, instruction, and what
/// the rows after the prompt would have read there. Main thread; knows sessions.
#pragma once

#include "engine/eval/evaluate.h"

#include <memory>
#include <span>
#include <string>
#include <vector>

namespace keyhole {

/// Means over the questions that have a span of this name, and over a lane's heads.
struct SpanMeasures {
    std::string name;
    double n_tokens = 0;
    double held = 0;            ///< share of its tokens in the KV heads after the prompt
    double full_attention = 0;  ///< probability that a row would give to them without any eviction
    double lost = 0;            ///< the part of it that goes to tokens which are gone
    int n_questions = 0, n_rows = 0;
};

/// Adds up the spans of a lane, question by question. Its sums are means once make_means() was called.
struct LaneSpans {
    std::vector<SpanMeasures> spans;  ///< in the order in which questions name them
};

/// Reads a question and its answer, or its first reference where lanes answer in own words, and adds what the
/// lanes held of its spans: they run with a shadow, as shadow=on. lanes: at least one; of_lanes: a place for
/// each, empty at first. Throws the session's Error.
void add_spans(const std::shared_ptr<const Model>& model, Backend& backend, std::span<const LaneSpec> lanes,
               const Question& question, std::span<LaneSpans> of_lanes);
/// Turns sums into means.
void make_means(LaneSpans& spans);

}  // namespace keyhole
