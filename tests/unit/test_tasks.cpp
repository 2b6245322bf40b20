// The questions that eval asks: equal to those of assets/training/tasks.py (tests/fixtures/make_tasks.py),
// and well formed.
#include "engine/base/index.h"
#include "tests/reference/session_run.h"

#include "engine/base/mapped_file.h"
#include "engine/eval/tasks.h"
#include "tests/reference/source_folder.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <set>
#include <sstream>

namespace keyhole::test_tasks {
namespace {

namespace fs = std::filesystem;
const fs::path kAssets = reference::source_folder() / "assets/tasks";
const fs::path kFolder = reference::source_folder() / "tests/fixtures/tasks";

/// A stand-in for a tokenizer, as in make_tasks.py.
int count_quarters(const std::string& text) {
    return static_cast<int>((text.size() + 3) / 4);
}

struct Material {
    explicit Material(const fs::path& folder = kFolder)
        : train(kAssets / "words.json", TaskSplit::train),
          test(kAssets / "words.json", TaskSplit::test),
          stated(kAssets / "words.json", TaskSplit::test, AskBy::statement),
          sentences(split_sentences(read_text_file(folder / "narrative.txt"))),
          passages(split_passages(read_text_file(folder / "passages.txt"), train.longest_answer())) {}
    TaskMaterial of(TaskSplit split) const {
        return {split == TaskSplit::train ? &train : &test, &sentences, &passages, count_quarters};
    }
    TaskMaterial by_statement() const { return {&stated, &sentences, &passages, count_quarters}; }
    TaskWords train, test, stated;
    std::vector<std::string> sentences;
    std::vector<TaskMaterial::Passage> passages;
};

nlohmann::json expected() {
    return nlohmann::json::parse(read_text_file(kFolder / "expected.json"));
}

TEST(Tasks, EqualThePythonTwinByteForByte) {
    const Material material;
    const auto json = expected();
    std::set<std::string> kinds;
    for (const auto& row : json.at("tasks")) {
        const std::string name = row.at("kind"), split = row.at("split"), ask = row.at("ask");
        kinds.insert(name + split + ask);
        const Task task = make_task(parse_tasks(name).at(0), row.at("seed"), row.at("index"),
                                    row.at("context"), {row.at("low"), row.at("high")},
                                    ask == "statement" ? material.by_statement()
                                    : split == "train" ? material.of(TaskSplit::train)
                                                       : material.of(TaskSplit::test));
        EXPECT_EQ(task.prompt, row.at("prompt").get<std::string>()) << name << " " << split;
        EXPECT_EQ(task.answer, row.at("answer").get<std::string>()) << name << " " << split;
        EXPECT_EQ(task.distance, row.at("distance").get<int>()) << name << " " << split;
    }
    EXPECT_EQ(kinds.size(), 3u * kTaskKinds);
}

TEST(Tasks, SentencesAndPassagesEqualThePythonTwin) {
    const Material material;
    const auto json = expected();
    EXPECT_EQ(material.sentences, json.at("sentences").get<std::vector<std::string>>());
    ASSERT_EQ(material.passages.size(), json.at("passages").size());
    for (std::size_t i = 0; i < material.passages.size(); ++i) {
        const TaskMaterial::Passage& p = material.passages[i];
        EXPECT_EQ((std::vector<std::string>{p.text, p.question, p.answer}),
                  json.at("passages").at(i).get<std::vector<std::string>>());
    }
}

TEST(Tasks, AskForWhatTheTextSaysAtTheDistanceWanted) {
    const Material material(kAssets);
    for (int k = 0; k < kTaskKinds; ++k)
        for (std::uint32_t index = 0; index < 40; ++index) {
            const auto kind = static_cast<TaskKind>(k);
            const Task task = make_task(kind, 3, index, 700, {300, 500}, material.of(TaskSplit::test));
            EXPECT_LE(count_quarters(task.prompt) + count_quarters(task.answer), 700);
            const std::string value = task.answer.substr(1);
            const std::size_t at = task.prompt.rfind(value);
            ASSERT_NE(at, std::string::npos) << task.prompt;
            if (kind == TaskKind::passage || kind == TaskKind::dialogue) continue;
            EXPECT_GE(count_quarters(task.prompt), 600);
            EXPECT_NEAR(task.distance, 400, 140) << task_name(kind);  // a sentence takes up to 75 quarters
            // Quarters are rounded up piece by piece. Their sum may exceed that of the whole by less than one
            // per piece.
            const int counted = static_cast<int>(task.prompt.size() - at) / 4;
            if (kind == TaskKind::list || kind == TaskKind::fact) continue;
            EXPECT_NEAR(task.distance, counted, 30) << task_name(kind) << "\n" << task.prompt;
        }
}

/// The text before the question and the answer are the same, whatever asks.
TEST(Tasks, AStatementAsksInPlaceOfTheQuestion) {
    const Material material(kAssets);
    for (const TaskKind kind : {TaskKind::needle, TaskKind::latest}) {
        // The distance is one that both ways of asking can have.
        const Task asked = make_task(kind, 3, 1, 400, {200, 200}, material.of(TaskSplit::test)),
                   stated = make_task(kind, 3, 1, 400, {200, 200}, material.by_statement());
        EXPECT_EQ(stated.answer, asked.answer);
        const std::size_t at = stated.prompt.rfind(" The ");
        const std::string end = stated.prompt.substr(at);
        EXPECT_TRUE(end.ends_with(kind == TaskKind::needle ? " is" : " is now")) << end;
        // It begins a sentence that the text holds with its value.
        EXPECT_NE((stated.prompt.substr(0, at)).find(end + stated.answer + "."), std::string::npos) << end;
        EXPECT_EQ(stated.prompt.find('?', at), std::string::npos);
        EXPECT_NE(asked.prompt.find('?', asked.prompt.rfind(" What")), std::string::npos);
        EXPECT_EQ(stated.prompt.substr(0, 40), asked.prompt.substr(0, 40));
    }
}

TEST(Tasks, DistancesSpreadOverTheContext) {
    const Material material(kAssets);
    int thirds[3] = {};
    for (std::uint32_t index = 0; index < 150; ++index)
        ++thirds[make_task(TaskKind::needle, 5, index, 600, {0, 600}, material.of(TaskSplit::test)).distance *
                 3 / 601];
    for (int n : thirds) EXPECT_NEAR(n, 50, 25);
}

TEST(Tasks, TheLatestCodeStandsAfterTheOldOne) {
    const Material material(kAssets);
    for (std::uint32_t index = 0; index < 20; ++index) {
        const Task task = make_task(TaskKind::latest, 1, index, 500, {50, 400}, material.of(TaskSplit::test));
        const std::size_t now = task.prompt.find("is now" + task.answer), old = task.prompt.find("The code");
        ASSERT_NE(now, std::string::npos);
        EXPECT_LT(old, now);
        EXPECT_EQ(task.prompt.find(task.answer, now + 12), std::string::npos) << task.prompt;
    }
}

TEST(Tasks, TestWordsAreNotTrainedOn) {
    const auto words = nlohmann::json::parse(read_text_file(kAssets / "words.json")).at("words");
    for (const auto& [name, lists] : words.items()) {
        if (name == "colour" || name == "onset" || name == "vowel") continue;
        std::set<std::string> train;
        std::istringstream a(lists.at("train").get<std::string>()), b(lists.at("test").get<std::string>());
        for (std::string word; a >> word;) EXPECT_TRUE(train.insert(word).second) << word;
        for (std::string word; b >> word;) EXPECT_FALSE(train.contains(word)) << name << ": " << word;
    }
}

TEST(Tasks, NamesAndFaultsAreSaid) {
    EXPECT_EQ(parse_tasks("all").size(), to_index(kTaskKinds));
    EXPECT_EQ(parse_tasks("recall,needle").size(), to_index(kTaskKinds - 1));
    EXPECT_EQ(parse_tasks("passage,list"), (std::vector<TaskKind>{TaskKind::passage, TaskKind::list}));
    const Material material;
    const auto ask = [&](TaskKind kind, int context) {
        return reference::error_of(
            [&] {
                make_task(kind, 1, 0, context, {0, 100}, material.of(TaskSplit::test));
            },
            ErrorCode::wrong_use);
    };
    EXPECT_NE(reference::error_of([] { parse_tasks("neddle"); }, ErrorCode::wrong_use).find("neddle"),
              std::string::npos);
    EXPECT_NE(ask(TaskKind::needle, 10).find("task needle: a question does not fit"), std::string::npos);
    const std::string more = ask(TaskKind::needle, 10);
    const int n_more = std::stoi(more.substr(more.find("longer by ") + 10));
    EXPECT_NE(ask(TaskKind::needle, 10 + n_more - 1).find("longer by 1 token or more"), std::string::npos);
    (void)make_task(TaskKind::needle, 1, 0, 10 + n_more, {0, 100}, material.of(TaskSplit::test));
    EXPECT_NE(ask(TaskKind::needle, 5000).find("does not fill"), std::string::npos);
    EXPECT_NE(ask(TaskKind::passage, 20).find("no passage fits"), std::string::npos);
    reference::error_of([] { TaskWords("/nowhere/words.json", TaskSplit::test); }, ErrorCode::bad_file);
}

}  // namespace
}  // namespace keyhole::test_tasks
