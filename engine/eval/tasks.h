/// Recall tasks: a text that states something, and a question that can be answered only by looking back. Twin
/// of assets/training/tasks.py, which makes the training texts: the same seed gives the same question, byte
/// for byte. assets/tasks/README.md describes the tasks. Any thread; knows base only; a function counts the
/// tokens.
#pragma once

#include "engine/eval/words.h"

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace keyhole {

enum class TaskKind {
    needle,
    fact,
    needles,
    latest,
    dialogue,
    list,
    passage,
    // The kinds of RULER: see ruler_tasks.h.
    ruler_single_1,
    ruler_single_2,
    ruler_single_3,
    ruler_multikey_1,
    ruler_multikey_2,
    ruler_multikey_3,
    ruler_multivalue,
    ruler_multiquery,
    ruler_tracking,
    ruler_common_words,
    ruler_frequent_words,
    ruler_passage_1,
    ruler_passage_2,
    instructions,  ///< see instruction_task.h
};
inline constexpr int kTaskKinds = 7;    ///< the first ones, which assets/training/tasks.py has too
inline constexpr int kRulerKinds = 13;  ///< those after them
inline constexpr int kAllTaskKinds = kTaskKinds + kRulerKinds + 1;
inline bool is_ruler(TaskKind kind) {
    return static_cast<int>(kind) >= kTaskKinds && static_cast<int>(kind) < kTaskKinds + kRulerKinds;
}
/// Returns whether a task can be asked at a distance that is given. Others have their own.
inline bool has_distance(TaskKind kind) {
    return kind != TaskKind::passage && kind != TaskKind::instructions && !is_ruler(kind);
}
std::string_view task_name(TaskKind kind);
/// Returns one sentence for a list of tasks.
std::string_view task_help(TaskKind kind);
/// Parses `needle`, a comma list, `recall` (all of the first kinds but passage), `all` (the first kinds) or
/// `ruler` (its thirteen). Throws Error(wrong_use), naming the valid tasks.
std::vector<TaskKind> parse_tasks(std::string_view text);

/// Tokens between the end of the fact that is asked for and the answer, including the question.
struct DistanceRange {
    int low = 0, high = 0;
    bool operator==(const DistanceRange&) const = default;
};

/// The parts that prompts are made from.
struct TaskMaterial {
    const TaskWords* words = nullptr;
    const std::vector<std::string>* sentences = nullptr;  ///< see split_sentences()
    struct Passage {
        std::string text, question, answer;
    };
    /// See split_passages(); may be null for the other tasks.
    const std::vector<Passage>* passages = nullptr;
    std::function<int(const std::string&)> count_tokens;  ///< counts a piece of text, without begin-of-text
    /// See vocabulary_of(); may be null for tasks that are not of RULER.
    const std::vector<std::string>* vocabulary = nullptr;
};

struct Task {
    std::string prompt;      ///< ends before the answer, without a blank
    std::string answer;      ///< begins with its blank
    int distance = 0;        ///< in tokens: the closest to the drawn one at an end of a sentence
    std::string question{};  ///< what the prompt ends with, after the text
    std::string stated{};    ///< the words of the text that state the answer
    /// Parts of the text by name, of which `asks_for` names the one that states the answer.
    std::vector<std::pair<std::string, std::string>> parts{};
    std::string asks_for{};
};

/// Makes question `index` of a kind. context: most tokens of prompt and answer, including begin-of-text. The
/// distance is drawn uniformly from the range, cut to what fits. A passage stands at the end and has its own
/// distance. Throws Error(wrong_use) if the question does not fit into the context, or the narrative does not
/// fill it.
Task make_task(TaskKind kind, std::uint64_t seed, std::uint32_t index, int context, DistanceRange distance,
               const TaskMaterial& material);

/// Splits a text into sentences. Each begins with a blank, or with an empty line if it is the first of a
/// paragraph. Left out are paragraphs that do not end like sentences (headings) and sentences of more than
/// 300 bytes. `<|endoftext|>` separates paragraphs.
std::vector<std::string> split_sentences(std::string_view text);

/// Returns the words of a narrative that tasks name things by: 4 to 9 small letters, each once, in the order
/// of the alphabet.
std::vector<std::string> vocabulary_of(const std::vector<std::string>& sentences);

/// Splits sections with `Question:` and `Answer:` lines, separated by `<|endoftext|>`. Returns the questions
/// whose answer has at most longest_answer bytes and occurs in the section word for word.
std::vector<TaskMaterial::Passage> split_passages(std::string_view text, int longest_answer);

}  // namespace keyhole
