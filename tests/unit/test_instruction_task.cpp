// The task of instructions: the answer follows from one instruction at the start alone, at every place.
#include "engine/base/error.h"
#include "engine/base/mapped_file.h"
#include "engine/eval/instruction_task.h"
#include "tests/reference/session_run.h"
#include "tests/reference/source_folder.h"

#include <gtest/gtest.h>

#include <set>
#include <sstream>

namespace keyhole::test_instruction_task {
namespace {

int count_words(const std::string& text) {
    std::istringstream in(text);
    int n = 0;
    for (std::string word; in >> word;) ++n;
    return n;
}

class InstructionTask : public ::testing::Test {
  protected:
    InstructionTask() : sentences_(split_sentences(read_text_file(folder_ / "narrative.txt"))) {
        vocabulary_ = vocabulary_of(sentences_);
    }
    Task task(std::uint32_t index, int context = 400, AskBy by = AskBy::question) const {
        const TaskWords words(folder_ / "words.json", TaskSplit::test, by);
        const TaskMaterial material{&words, &sentences_, nullptr, count_words, &vocabulary_};
        return make_task(TaskKind::instructions, 7, index, context, {}, material);
    }
    const std::filesystem::path folder_ = reference::source_folder() / "assets/tasks";
    std::vector<std::string> sentences_, vocabulary_;
};

TEST_F(InstructionTask, IsAnsweredByOneInstructionAtTheStart) {
    std::set<std::string> asked, prompts, questions;
    for (std::uint32_t i = 0; i < 60; ++i) {
        const Task one = task(i);
        EXPECT_EQ(one.prompt, task(i).prompt) << "the same seed";
        prompts.insert(one.prompt);
        questions.insert(one.question);
        ASSERT_EQ(one.parts.size(), 4u);
        std::string head = "Instructions:";
        int n_with_answer = 0;
        for (const auto& [name, rule] : one.parts) {
            head += " " + rule;
            n_with_answer += rule.ends_with(one.answer + ".") ? 1 : 0;
            EXPECT_EQ(name == one.asks_for, rule == one.stated);
        }
        EXPECT_TRUE(one.prompt.starts_with(head)) << one.prompt;
        EXPECT_TRUE(one.prompt.ends_with(one.question)) << one.prompt;
        EXPECT_EQ(n_with_answer, 1) << head;
        EXPECT_TRUE(one.stated.ends_with(one.answer + ".")) << one.stated;
        asked.insert(one.asks_for);
        const int n = 1 + count_words(one.prompt) + count_words(one.answer);
        EXPECT_LE(n, 400);
        EXPECT_GT(n, 330) << "fills the context";
        const std::size_t after = one.prompt.find(one.stated) + one.stated.size();
        EXPECT_EQ(one.distance, count_words(one.prompt.substr(after)));
    }
    EXPECT_EQ(prompts.size(), 60u);
    EXPECT_EQ(asked.size(), 4u) << "each place is asked";
    EXPECT_EQ(questions.size(), 6u) << "each form is asked";
}

/// --ask statement: what is asked is the instruction's own beginning.
TEST_F(InstructionTask, IsAskedByItsStatementToo) {
    for (std::uint32_t i = 0; i < 10; ++i) {
        const Task one = task(i, 400, AskBy::statement), other = task(i);
        EXPECT_EQ(one.answer, other.answer);
        const std::string begin = one.question.substr(one.question.find(": ") + 2);
        EXPECT_EQ(begin + one.answer + ".", one.stated);
    }
}

TEST_F(InstructionTask, NeedsRoomAndANarrative) {
    reference::error_of([&] { (void)task(0, 20); }, ErrorCode::wrong_use);
    reference::error_of([&] { (void)task(0, 1 << 24); }, ErrorCode::wrong_use);
    EXPECT_EQ(parse_tasks("instructions"), std::vector<TaskKind>{TaskKind::instructions});
    EXPECT_FALSE(has_distance(TaskKind::instructions));
    EXPECT_FALSE(is_ruler(TaskKind::instructions));
}

}  // namespace
}  // namespace keyhole::test_instruction_task
