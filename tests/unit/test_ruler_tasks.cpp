// RULER's kinds of task: each question has what its kind says, fits into the
// context, and its answer follows from its text alone.
#include "engine/base/error.h"
#include "engine/base/mapped_file.h"
#include "engine/eval/ruler_tasks.h"
#include "tests/reference/session_run.h"
#include "tests/reference/source_folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <regex>
#include <sstream>

namespace keyhole::test_ruler_tasks {
namespace {

namespace fs = std::filesystem;

/// A stand-in for a tokenizer: a token is a word with what stands before and
/// behind it.
int count_words(const std::string& text) {
    std::istringstream in(text);
    int n = 0;
    for (std::string word; in >> word;) ++n;
    return n;
}

struct Material {
    Material() {
        const fs::path folder = reference::source_folder() / "assets/tasks";
        sentences = split_sentences(read_text_file(folder / "narrative.txt"));
        passages = split_passages(read_text_file(folder / "passages.txt"), 40);
        vocabulary = vocabulary_of(sentences);
    }
    TaskMaterial of() const { return {nullptr, &sentences, &passages, count_words, &vocabulary}; }
    std::vector<std::string> sentences;
    std::vector<TaskMaterial::Passage> passages;
    std::vector<std::string> vocabulary;
};

const Material& material() {
    static const Material all;
    return all;
}

Task task_of(TaskKind kind, std::uint32_t index, int context = 600) {
    return make_ruler_task(kind, 7, index, context, material().of());
}

/// Returns what a pattern's groups match, in the order of the text.
std::vector<std::string> all_of(const std::string& text, const std::string& pattern) {
    const std::regex form(pattern);
    std::vector<std::string> found;
    for (std::sregex_iterator at(text.begin(), text.end(), form), end; at != end; ++at)
        found.push_back((*at)[1].str());
    return found;
}

std::string text_of(const Task& task) {
    return task.prompt.substr(0, task.prompt.size() - task.question.size());
}

std::string joined(const std::vector<std::string>& list) {
    std::string text;
    for (const std::string& one : list) text += (text.empty() ? " " : ", ") + one;
    return text;
}

TEST(RulerTasks, EveryKindFitsAndIsTheSameForTheSameSeed) {
    for (int k = kTaskKinds; k < kTaskKinds + kRulerKinds; ++k) {
        const auto kind = static_cast<TaskKind>(k);
        const std::string name(task_name(kind));
        EXPECT_TRUE(name.starts_with("ruler-")) << name;
        EXPECT_EQ(parse_tasks(name), std::vector<TaskKind>{kind});
        std::set<std::string> prompts;
        for (std::uint32_t i = 0; i < 5; ++i) {
            const Task task = task_of(kind, i), again = task_of(kind, i);
            EXPECT_EQ(task.prompt, again.prompt) << name;
            EXPECT_EQ(task.answer, again.answer) << name;
            prompts.insert(task.prompt);
            const int n = 1 + count_words(task.prompt) + count_words(task.answer);
            EXPECT_LE(n, 600) << name;
            EXPECT_GT(n, 250) << name << " fills the context";
            EXPECT_TRUE(task.prompt.ends_with(task.question)) << name;
            EXPECT_EQ(task.answer.front(), ' ') << name;
            EXPECT_NE(task.prompt.find(task.stated), std::string::npos) << name;
            EXPECT_LT(task.distance, 600) << name;
        }
        EXPECT_EQ(prompts.size(), 5u) << name;
    }
    EXPECT_EQ(parse_tasks("ruler").size(), 13u);
    EXPECT_EQ(parse_tasks("all").size(), 7u);
}

TEST(RulerTasks, NeedlesAreStatedOnceAndAskedByTheirKey) {
    for (const TaskKind kind :
         {TaskKind::ruler_single_1, TaskKind::ruler_single_2, TaskKind::ruler_single_3,
          TaskKind::ruler_multikey_1, TaskKind::ruler_multikey_2, TaskKind::ruler_multikey_3}) {
        const Task task = task_of(kind, 3);
        const std::string key = all_of(task.question, " The code of (\\S+) is").at(0);
        EXPECT_EQ(all_of(text_of(task), "The code of " + key + " is (\\S+)\\."),
                  std::vector<std::string>{task.answer.substr(1)})
            << task.prompt;
        const std::size_t n = all_of(text_of(task), "The code of (\\S+) is").size();
        if (kind == TaskKind::ruler_multikey_1) {
            EXPECT_EQ(n, 4u);
        }
        if (kind == TaskKind::ruler_multikey_2 || kind == TaskKind::ruler_multikey_3) {
            EXPECT_GT(n, 50u);
        }
        if (kind == TaskKind::ruler_single_3) {
            EXPECT_EQ(task.answer.size(), 1 + 36u);
        }
        // The distance is counted in words from the end of the needle.
        const std::size_t end = task.prompt.find(task.stated) + task.stated.size();
        EXPECT_EQ(task.distance, count_words(task.prompt.substr(end))) << task.prompt;
    }
}

TEST(RulerTasks, SeveralValuesAndKeysHaveTheOrderThatTheQuestionSays) {
    const Task values = task_of(TaskKind::ruler_multivalue, 1);
    const std::string key = all_of(values.question, "codes of (\\S+), in").at(0);
    EXPECT_EQ(joined(all_of(text_of(values), "The code of " + key + " is (\\d+)\\.")), values.answer);
    EXPECT_EQ(std::count(values.answer.begin(), values.answer.end(), ','), 3);
    const Task queries = task_of(TaskKind::ruler_multiquery, 1);
    std::vector<std::string> answers;
    std::istringstream keys(all_of(queries.question, " The codes of (.*), in this order").at(0));
    for (std::string one; std::getline(keys, one, ',');)
        answers.push_back(all_of(text_of(queries),
                                 "The code of " + one.substr(one.find_first_not_of(' ')) + " is (\\d+)\\.")
                              .at(0));
    EXPECT_EQ(answers.size(), 4u);
    EXPECT_EQ(joined(answers), queries.answer);
}

/// Variables are followed from the value, by reading alone.
TEST(RulerTasks, TrackedNamesTakeOverTheValue) {
    const Task task = task_of(TaskKind::ruler_tracking, 2);
    const std::string value = all_of(task.question, "have the value (\\d+)").at(0);
    std::set<std::string> has_it = {value};
    std::vector<std::string> found;
    const std::regex form("Let ([A-Z]+) = (\\w+)\\.");
    const std::string text = text_of(task);
    for (std::sregex_iterator at(text.begin(), text.end(), form), end; at != end; ++at)
        if (has_it.count((*at)[2]) > 0) {
            has_it.insert((*at)[1]);
            found.push_back((*at)[1]);
        }
    EXPECT_EQ(found.size(), 5u);
    EXPECT_EQ(joined(found), task.answer);
}

TEST(RulerTasks, ListsAreAnsweredByCounting) {
    for (const TaskKind kind : {TaskKind::ruler_common_words, TaskKind::ruler_frequent_words}) {
        const Task task = task_of(kind, 4);
        std::map<std::string, int> counts;
        for (const std::string& word : all_of(text_of(task), "\\d+\\. ([a-z]+)")) ++counts[word];
        std::vector<std::pair<int, std::string>> ranked;
        for (const auto& [word, n] : counts) ranked.emplace_back(-n, word);
        std::sort(ranked.begin(), ranked.end());
        std::vector<std::string> most;
        if (kind == TaskKind::ruler_common_words) {
            for (const auto& [n, word] : ranked)
                if (n == -10) most.push_back(word);  // sorted by the alphabet
            EXPECT_EQ(ranked[most.size()].first, -1) << "the others come once";
        } else {
            for (std::size_t i = 0; i < 3; ++i) most.push_back(ranked[i].second);
            EXPECT_LT(ranked[2].first, ranked[3].first) << "the third is clear";
        }
        EXPECT_EQ(joined(most), task.answer) << task.question;
    }
}

TEST(RulerTasks, PassagesStandAmongOthers) {
    const Task one = task_of(TaskKind::ruler_passage_1, 1, 3000),
               two = task_of(TaskKind::ruler_passage_2, 1, 3000);
    EXPECT_NE(one.stated.find(one.answer.substr(1)), std::string::npos);
    EXPECT_GT(count_words(text_of(one)), 2 * count_words(one.stated)) << "other sections stand beside it";
    const std::size_t between = two.answer.find("; ");
    ASSERT_NE(between, std::string::npos) << two.answer;
    EXPECT_NE(text_of(two).find(two.answer.substr(between + 2)), std::string::npos);
}

TEST(RulerTasks, RefuseInOneLineWhatDoesNotFit) {
    const auto fault = [](TaskKind kind, int context) {
        return reference::error_of([&] { (void)task_of(kind, 0, context); }, ErrorCode::wrong_use);
    };
    EXPECT_NE(fault(TaskKind::ruler_multiquery, 20).find("does not fit into the context"), std::string::npos);
    for (const TaskKind kind : {TaskKind::ruler_frequent_words, TaskKind::ruler_common_words}) {
        const std::string says = fault(kind, 40), before = "make the context longer by ";
        const std::size_t at = says.find(before);
        ASSERT_NE(at, std::string::npos) << says;
        const int missing = std::stoi(says.substr(at + before.size()));
        EXPECT_FALSE(task_of(kind, 0, 40 + missing).answer.empty()) << says;
        EXPECT_NE(fault(kind, 39 + missing).find("longer by 1 token or more"), std::string::npos) << says;
    }
    EXPECT_NE(fault(TaskKind::ruler_passage_1, 30).find("no passage fits"), std::string::npos);
    EXPECT_NE(fault(TaskKind::ruler_single_2, 500'000).find("does not fill the context"), std::string::npos);
}

TEST(RulerTasks, VocabularyHasWholeSmallWords) {
    EXPECT_EQ(vocabulary_of({" The hare sang loudly, Tom's geese-herd ran.", " Then sang the hare."}),
              (std::vector<std::string>{"hare", "loudly", "sang"}));
}

}  // namespace
}  // namespace keyhole::test_ruler_tasks
