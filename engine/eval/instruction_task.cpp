#include "engine/eval/instruction_task.h"

#include "engine/base/index.h"
#include "engine/eval/drawn_parts.h"

#include <fmt/format.h>

#include <array>

namespace keyhole {

namespace {

/// An instruction up to its word, and where it applies: what a text that follows it has before the word.
struct InstructionForm {
    std::string_view rule, applies;
};
constexpr std::array kForms = {
    InstructionForm{"Answer every question with the word", "\n\nQuestion: Who came to the door?\nAnswer:"},
    InstructionForm{"Sign every note with the name",
                    "\n\nA note lies on the table. It is signed with the name"},
    InstructionForm{"End every list with the word", "\n\nThe list: bread, salt, candles, and at the end"},
    InstructionForm{"Call the dog by the name", "\n\nNow call the dog:"},
    InstructionForm{"Write on every door the word", "\n\nHere is a door. On it is written the word"},
    InstructionForm{"Give every price in the coin", "\n\nThe bread costs four of the coin"},
};

}  // namespace

Task make_instructions(Draw& draw, int context, const TaskMaterial& material) {
    std::vector<std::size_t> forms;
    for (std::size_t i = 0; i < kForms.size(); ++i) forms.push_back(i);
    shuffle(draw, forms);
    const std::vector<std::string> words = draw_words(draw, material, kInstructions);
    const std::size_t asked = draw.below(kInstructions);
    Task task;
    std::string head = "Instructions:", after;
    for (std::size_t i = 0; i < to_index(kInstructions); ++i) {
        const std::string rule = fmt::format("{} {}.", kForms[forms[i]].rule, words[i]);
        task.parts.emplace_back(fmt::format("instruction {}", i + 1), rule);
        head += " " + rule;
        if (i > asked) after += " " + rule;
    }
    const InstructionForm& form = kForms[forms[asked]];
    const bool states = material.words != nullptr && material.words->ask_by() == AskBy::statement;
    task.question = states ? fmt::format("\n\nOnce more: {}", form.rule) : std::string(form.applies);
    task.answer = " " + words[asked];
    task.stated = task.parts[asked].second;
    task.asks_for = task.parts[asked].first;
    const auto& count = material.count_tokens;
    const Narrative narrative =
        draw_narrative(draw, material, context - 1 - count(head) - count(task.question) - count(task.answer));
    task.prompt = head;
    for (const std::string* sentence : narrative.sentences) task.prompt += *sentence;
    task.prompt += task.question;
    task.distance = count(after) + narrative.edges.back() + count(task.question);
    return task;
}

}  // namespace keyhole
