/// What single heads of lanes hold, and attend to, while they answer questions. Main thread; knows sessions.
#pragma once

#include "engine/eval/evaluate.h"

#include <memory>
#include <span>
#include <vector>

namespace keyhole {

/// Means of one query head over the rows after the prompt, which a lane reads from what it kept, and over
/// questions. NaN: no question tells it.
struct HeadMeasures {
    double held = std::nan("");            ///< share of the answer's tokens in its KV head after the prompt
    double attention = std::nan("");       ///< probability that it gives to them
    double full_attention = std::nan("");  ///< that it would give to them without any eviction
    double lost = 0;          ///< lost_mass of measure_table.h: what full attention gives to evicted tokens
    double recall = 0;        ///< share of the ideal set of measure_table.h that it attends to
    double output_error = 0;  ///< 1 - output_similarity of measure_table.h
};

/// Adds up the heads of a lane, question by question. Its sums are means once make_means() was called.
struct LaneHeads {
    std::vector<HeadMeasures> heads;      ///< [n_layers * n_heads]
    int n_rows = 0;                       ///< that were added
    int n_placed = 0, n_placed_rows = 0;  ///< questions and rows of questions that state their answer
};

/// Throws Error(wrong_use) for questions with an answer of their own kind (Question::answer): what
/// add_heads() measures needs one that is known.
void check_heads_of(const QuestionSet& set);

/// Answers a question and adds what the heads did: lanes run with a shadow, as shadow=on. heads: a place for
/// each lane, empty at first. Throws the session's Error. Call check_heads_of() before.
void add_heads(const std::shared_ptr<const Model>& model, Backend& backend, std::span<const LaneSpec> lanes,
               const Question& question, std::span<LaneHeads> heads);
/// Turns sums into means. Needs a row.
void make_means(LaneHeads& heads);

}  // namespace keyhole
