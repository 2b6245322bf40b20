/// Word lists and templates of the recall tasks (assets/tasks/words.json), and the facts made from them. Twin of the class Words in
/// assets/training/tasks.py: the same draws in the same order. Const after loading; any thread.
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

enum class TaskSplit {
    train,
    test
};  ///< test: names and nouns that are not trained on, first templates only

/// Values with whole weights.
struct WeightedTexts {
    std::vector<std::uint32_t> ends;  ///< running sums of the weights
    std::vector<std::string> values;
    void add(std::uint32_t weight, std::string value);
    const std::string& draw(Draw& draw) const;
};

/// Something stated once and asked later.
struct Fact {
    std::string key;        ///< what facts of one text differ in
    std::string value;      ///< what they may not share either
    std::string statement;  ///< without the blank before it
    std::string ask;        ///< up to the answer, no blank at its end
    std::string answer;     ///< without the blank before it
    std::string update;     ///< a later statement with another value; empty where the kind has none
    std::string update_ask, update_answer;
};

class TaskWords {
  public:
    /// Throws Error(bad_file) naming the file and what is missing.
    TaskWords(const std::filesystem::path& words_json, TaskSplit split);

    /// Different values, keys without a common word of four letters or more.
    std::vector<Fact> facts(Draw& draw, const std::string& kind, int n) const;
    /// A list and the request to say it again.
    Fact listing(Draw& draw) const;

    struct TaskRule {
        WeightedTexts kinds;  ///< of facts
        int n_others = 0;     ///< facts beside the one that is asked for
    };
    const TaskRule& rule(const std::string& task) const;
    int longest_answer() const { return longest_answer_; }  ///< bytes; of passages

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
    std::map<std::string, WeightedTexts, std::less<>> rules_;
    std::map<std::string, FactKind> facts_;
    std::map<std::string, TaskRule> tasks_;
    int shortest_list_ = 0, longest_list_ = 0;
    int longest_answer_ = 0;
};

}  // namespace keyhole
