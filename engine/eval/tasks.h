/// Recall tasks: a text that states something, and a question whose answer can be known only by looking back. Twin of
/// assets/training/tasks.py, from which models are trained: the same question from the same seed, byte for byte. What the tasks
/// are: assets/tasks/README.md. Any thread; knows base only, tokens are counted by a function.
#pragma once

#include "engine/eval/words.h"

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

enum class TaskKind { needle, fact, needles, latest, dialogue, list, passage };
inline constexpr int kTaskKinds = 7;
std::string_view task_name(TaskKind kind);
/// One sentence for a list of tasks.
std::string_view task_help(TaskKind kind);
/// `needle`, a comma list, `recall` (all but passage) or `all`. Throws Error(wrong_use) naming the tasks there are.
std::vector<TaskKind> parse_tasks(std::string_view text);

/// Tokens between the end of what is asked for and the answer, the question included.
struct DistanceRange {
    int low = 0, high = 0;
    bool operator==(const DistanceRange&) const = default;
};

/// What prompts are made of.
struct TaskMaterial {
    const TaskWords* words = nullptr;
    const std::vector<std::string>* sentences = nullptr;  ///< see split_sentences()
    struct Passage {
        std::string text, question, answer;
    };
    const std::vector<Passage>* passages =
        nullptr;  ///< see split_passages(); may be null for the other tasks
    std::function<int(const std::string&)> count_tokens;  ///< of a piece of text, without begin-of-text
};

struct Task {
    std::string prompt;  ///< ends before the answer, without a blank
    std::string answer;  ///< begins with its blank
    int distance = 0;    ///< tokens: the nearest to what was drawn that the ends of sentences allow
};

/// Question `index` of a kind. context: prompt and answer take at most so many tokens, begin-of-text included. The distance is drawn
/// uniformly from the range, cut to what fits; a passage stands at the end and sets its own. Throws Error(wrong_use) when the
/// question does not fit into the context or the narrative does not fill it.
Task make_task(TaskKind kind, std::uint64_t seed, std::uint32_t index, int context, DistanceRange distance,
               const TaskMaterial& material);

/// Sentences of a text as pieces: a blank or, for the first of a paragraph, an empty line before each. Paragraphs that do not end as
/// sentences do (headings), and sentences of more than 300 bytes, are left out; `<|endoftext|>` parts paragraphs.
std::vector<std::string> split_sentences(std::string_view text);

/// Sections with `Question:` and `Answer:` lines, parted by `<|endoftext|>`: the questions whose answer has at most so many bytes
/// and stands in the section word for word.
std::vector<TaskMaterial::Passage> split_passages(std::string_view text, int longest_answer);

}  // namespace keyhole
