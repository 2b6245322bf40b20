/// Fills an AnswerFile: answers the questions of a set that it does not hold yet, so that an interrupted
/// command goes on. Main thread; knows eval.
#pragma once

#include "engine/eval/answer_file.h"
#include "engine/eval/shard.h"
#include "engine/eval/two_at_a_time.h"

#include <functional>
#include <span>
#include <string>
#include <vector>

namespace keyhole {

/// The lanes that answer a question: as many for each one, of the same models.
using LanesOf = std::function<std::vector<LaneSpec>(int question)>;
/// Returns the same lanes for all questions.
LanesOf same_lanes(std::span<const LaneSpec> lanes);

/// Answers what is missing, with as many lanes at a time as memory allows: they share the pass over the
/// prompt. asked: asked_on() of the set. context: tokens of a prompt and its answer. each: called with the
/// number of answers that were added and are in the file now. shard: the questions that are answered.
/// with_kl: also Outcome::kl, to the first lane, which is then asked again in every batch. Throws the
/// session's Error, and Error(io).
void answer_missing(const Model& model, TwoAtATime& side_by_side, const QuestionSet& set,
                    const std::string& asked, const LanesOf& lanes_of, int context, AnswerFile& answers,
                    const std::function<void(int n_answers)>& each, const Shard& shard = {},
                    bool with_kl = false);

/// Returns the answers of each lane to all questions, [lane][question]. Needs all of them in the file.
std::vector<std::vector<Outcome>> known_answers(const QuestionSet& set, const std::string& asked,
                                                const LanesOf& lanes_of, const AnswerFile& answers);

/// Returns how many of the answers of the lanes to a shard's questions are not in the file.
int count_missing(const QuestionSet& set, const std::string& asked, const LanesOf& lanes_of,
                  const AnswerFile& answers, const Shard& shard = {}, bool with_kl = false);
/// Returns how many questions of the set a shard has.
int count_questions(const QuestionSet& set, const Shard& shard);

}  // namespace keyhole
