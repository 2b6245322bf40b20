/// Instructions that stand before a long text, as a system message does, and are to be followed after it.
/// Each names a word; the answer is that word where its instruction applies. So a lane that lost an
/// instruction is wrong, and the spans say which one was lost. Any thread; knows base only.
#pragma once

#include "engine/eval/question_rng.h"
#include "engine/eval/tasks.h"

namespace keyhole {

inline constexpr int kInstructions = 4;  ///< of a question

/// Makes a question: instructions in a random order, narrative, and a place where one of them applies, or
/// with AskBy::statement the beginning of that instruction once more. Task::parts has them as "instruction
/// 1" and so on, in the order of the text. Throws Error(wrong_use) if it does not fit into the context, or
/// the narrative does not fill it.
Task make_instructions(Draw& draw, int context, const TaskMaterial& material);

}  // namespace keyhole
