/// Parts of a task that are drawn from its material. Any thread; knows base only.
#pragma once

#include "engine/eval/question_rng.h"
#include "engine/eval/tasks.h"

#include <string>
#include <vector>

namespace keyhole {

/// Consecutive sentences, and the token counts at their edges (one edge more than sentences).
struct Narrative {
    std::vector<const std::string*> sentences;
    std::vector<int> edges{0};
};
/// Throws Error(wrong_use) if room, what a question leaves of the context, is below 0.
void check_room(int room);
/// Draws as many sentences as fit into `room` tokens, from a random one on. Throws Error(wrong_use) where
/// there is no room, or the narrative does not fill it.
Narrative draw_narrative(Draw& draw, const TaskMaterial& material, int room);

/// Draws n different words of the vocabulary. Throws Error(wrong_use) if it has fewer.
std::vector<std::string> draw_words(Draw& draw, const TaskMaterial& material, int n);

/// Puts a list in a random order.
template <class Value>
void shuffle(Draw& draw, std::vector<Value>& list) {
    for (std::size_t i = list.size(); i > 1; --i)
        std::swap(list[i - 1], list[draw.below(static_cast<std::uint32_t>(i))]);
}

}  // namespace keyhole
