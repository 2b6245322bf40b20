/// Question sets from a file of the user (data_file.h): answers in the lanes' own words, compared with
/// references, choices by likelihood, and targets, which are read token by token as the answers of tasks.
/// Main thread; knows sessions.
#pragma once

#include "engine/eval/evaluate.h"
#include "engine/eval/prompted_lanes.h"

#include <filesystem>
#include <memory>
#include <string>

namespace keyhole {

struct DataOptions {
    std::filesystem::path file;
    std::filesystem::path few_shot;  ///< file whose first examples stand before each question; empty: none
    int n_shots = 0;                 ///< how many of them
    int n_questions = 0;             ///< so many of the file; 0: all
    int n_before = 0;                ///< questions of the file that are left out before them
    int context = 0;                 ///< most tokens of prompt and answer; 0: the model's
    AskWhen ask_when =
        AskWhen::before;         ///< after: examples have a context, which is evicted without the prompt
    bool cut = false;            ///< a longer prompt loses its beginning; otherwise it is refused
    int answer_tokens = 64;      ///< most tokens of an answer in the lane's own words
    bool to_end_of_line = true;  ///< such an answer ends with its line; otherwise with the text
    bool stems = false;          ///< ROUGE compares stems
    /// An answer in own words is right if its last number is that of a reference, as a chain of reasoning
    /// ends with its result. A measure of its own.
    bool last_number = false;
    bool chat = false;  ///< system and prompt are turns in the form of the model's chat template
    Sampling rules;     ///< greedy; see token_rules.h
    BeamSettings beams;
};

/// The names of Outcome::measures of an answer in own words, and of a choice.
///     acc       the choice with the largest sum of ln p is right, as lm-eval's acc
///     acc_norm  the same for the sum divided by the characters of the choice, as lm-eval's acc_norm
///     acc_bytes the same divided by its bytes
std::vector<MeasureKind> text_measures();
std::vector<MeasureKind> choice_measures();

/// Reads the files and tokenizes all questions. Prompt and answer are joined by a blank unless the prompt
/// ends in white space; blanks at the end of a prompt go to a choice, as in lm-eval. Few-shot examples are
/// joined by an empty line. Where both files are the same one, its first n_shots examples are not asked.
/// Throws Error(bad_file) for a file that cannot be read, and Error(wrong_use), naming the line, for a prompt
/// that does not fit.
QuestionSet data_questions(std::shared_ptr<const Model> model, const DataOptions& options);

}  // namespace keyhole
