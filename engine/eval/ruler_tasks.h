/// The thirteen kinds of task of RULER (Hsieh et al. 2024), generated from the
/// words, narrative and passages that the program has; no text of RULER is
/// used. Its code scores the share of answers that a generated text contains;
/// here a question is right when greedy decoding gives its whole answer, so
/// that answers have an order, which the question says. Any thread; knows base
/// only.
#pragma once

#include "engine/eval/question_rng.h"
#include "engine/eval/tasks.h"

namespace keyhole {

/// Makes question `index` of one of the kinds from TaskKind::ruler_single_1 on.
/// context: most tokens of prompt and answer, including begin-of-text. Places
/// are drawn from the whole text. Throws Error(wrong_use) if the question does
/// not fit into the context, or if the narrative or the passages do not fill
/// it.
Task make_ruler_task(TaskKind kind, std::uint64_t seed, std::uint32_t index, int context,
                     const TaskMaterial& material);

}  // namespace keyhole
