/// Word lists and templates of the recall tasks (assets/tasks/words.json), and the facts made from them. Twin
/// of the class Words in assets/training/tasks.py: the same draws in the same order. Const after loading; any
/// thread; knows no tokens.
#pragma once

#include "engine/eval/question_rng.h"

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace keyhole {

/// How a text asks for a fact: by a question ("What is the code of the gate?"), or by the statement itself up
/// to its value ("The code of the gate is"), which models that were not trained on the questions complete.
enum class AskBy { question, statement };

enum class TaskSplit { train, test };  ///< test: names and nouns not used in training, first templates only

/// Values with integer weights.
struct WeightedTexts {
    std::vector<std::uint32_t> ends;  ///< running sums of the weights
    std::vector<std::string> values;
    void add(std::uint32_t weight, std::string value);
    const std::string& draw(Draw& draw) const;
};

/// A fact that is stated once and asked for later.
struct Fact {
    std::string key;        ///< differs between the facts of one text
    std::string value;      ///< also differs between them
    std::string statement;  ///< without the blank before it
    std::string ask;        ///< up to the answer, without a blank at its end
    std::string answer;     ///< without the blank before it
    std::string update;     ///< a later statement with another value; empty if the kind has none
    std::string update_ask, update_answer;
};

class TaskWords {
  public:
    /// Loads the file. Throws Error(bad_file), naming the file and what is missing.
    TaskWords(const std::filesystem::path& words_json, TaskSplit split, AskBy ask_by = AskBy::question);

    /// Draws n facts with different values, and keys without a common word of four letters or more.
    std::vector<Fact> facts(Draw& draw, const std::string& kind, int n) const;
    /// Draws a list and the request to repeat it.
    Fact listing(Draw& draw) const;

    struct TaskRule {
        WeightedTexts kinds;  ///< of facts
        int n_others = 0;     ///< facts besides the one that is asked for
    };
    const TaskRule& rule(const std::string& task) const;
    int longest_answer() const { return longest_answer_; }  ///< in bytes, of passages
    AskBy ask_by() const { return ask_by_; }

  private:
    struct FactKind {
        std::string key, value;
        std::vector<std::pair<std::string, std::string>> slots;  ///< name, rule; drawn in this order
        WeightedTexts statements, questions, updates, questions_now;
    };
    std::string expand(Draw& draw, std::string_view rule) const;
    const std::string& pick_template(Draw& draw, const WeightedTexts& templates) const;
    Fact fact(Draw& draw, const FactKind& kind) const;

    TaskSplit split_;
    AskBy ask_by_;
    std::map<std::string, WeightedTexts, std::less<>> rules_;
    std::map<std::string, FactKind> facts_;
    std::map<std::string, TaskRule> tasks_;
    int shortest_list_ = 0, longest_list_ = 0;
    int longest_answer_ = 0;
};

}  // namespace keyhole
