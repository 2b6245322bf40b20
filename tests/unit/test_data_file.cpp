// Files of a user's own questions: what is read, and the one line that refuses what cannot be.
#include "engine/base/error.h"
#include "engine/eval/data_file.h"
#include "tests/reference/source_folder.h"

#include <gtest/gtest.h>

#include <string>

namespace keyhole {
namespace {

std::string refusal(const std::string& text) {
    try {
        (void)parse_data_file(text, "x.jsonl");
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::bad_file);
        EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
        return error.what();
    }
    return "it was read";
}

TEST(DataFile, ReadsQuestionsAndChoices) {
    const DataFile texts = parse_data_file(
        "\xef\xbb\xbf{\"prompt\": \"Who?\", \"references\": [\"he\", \"him\"]}\r\n\n"
        "  \n{\"references\": [\"\"], \"prompt\": \"\"}",
        "x.jsonl");
    ASSERT_EQ(texts.examples.size(), 2u);
    EXPECT_FALSE(texts.has_choices());
    EXPECT_EQ(texts.examples[0].prompt, "Who?");
    EXPECT_EQ(texts.examples[0].references, (std::vector<std::string>{"he", "him"}));
    EXPECT_EQ(texts.examples[0].shown_answer(), "he");
    EXPECT_EQ(texts.examples[1].line, 4);
    const DataFile choices = parse_data_file(
        R"({"prompt": "a", "choices": ["x", "y"], "answer": 1}
{"prompt": "b", "choices": ["x", "y"], "answer": "y"}
{"prompt": "c", "choices": ["x", "y"], "references": ["y"]})",
        "x.jsonl");
    ASSERT_EQ(choices.examples.size(), 3u);
    for (const DataExample& example : choices.examples) {
        EXPECT_EQ(example.answer, 1);
        EXPECT_EQ(example.shown_answer(), "y");
    }
    EXPECT_NE(texts.digest, choices.digest);
    const DataFile targets = parse_data_file(R"({"prompt": "Who?", "target": " he"})", "x.jsonl");
    EXPECT_TRUE(targets.has_targets());
    EXPECT_FALSE(targets.has_choices());
    EXPECT_EQ(targets.examples[0].shown_answer(), " he");
    EXPECT_FALSE(texts.has_targets());
}

TEST(DataFile, ReadsASystemMessageAndSpans) {
    const DataFile file = parse_data_file(
        R"({"system": "Be brief. Say A.", "context": "The sky is blue.", "prompt": "Colour?",)"
        R"( "references": ["blue"],)"
        R"( "spans": {"rule": "Say A.", "fact": "blue"}, "asks_for": "fact"})",
        "x.jsonl");
    const DataExample& example = file.examples.at(0);
    EXPECT_EQ(example.system, "Be brief. Say A.");
    ASSERT_EQ(example.spans.size(), 2u);
    EXPECT_EQ(example.spans[1], (std::pair<std::string, std::string>("rule", "Say A.")));
    EXPECT_EQ(example.asks_for, "fact");
}

TEST(DataFile, RefusesInOneLineWithLineAndField) {
    const std::string good = "{\"prompt\": \"a\", \"references\": [\"b\"]}\n";
    struct Case {
        std::string line;
        std::vector<std::string> says;
    };
    for (const Case& c : std::vector<Case>{
             {"{\"prompt\": 5, \"references\": [\"b\"]}", {"prompt", "5"}},
             {"{\"references\": [\"b\"]}", {"prompt"}},
             {"{\"prompt\": \"a\"}", {"'references'"}},
             {"{\"prompt\": \"a\", \"references\": []}", {"'references'"}},
             {"{\"prompt\": \"a\", \"references\": \"b\"}", {"references", "b"}},
             {"{\"prompt\": \"a\", \"references\": [\"b\", 7]}", {"references[1]", "7"}},
             {"{\"prompt\": \"a\", \"reference\": [\"b\"]}", {"'reference' is unknown"}},
             {"{\"prompt\": \"a\", \"references\": [\"b\"], \"answer\": 0}", {"answer", "choices"}},
             {"{\"prompt\": \"a\", \"choices\": [\"b\"], \"answer\": 0}", {"choices", "between 2"}},
             {"{\"prompt\": \"a\", \"choices\": [\"b\", \"\"], \"answer\": 0}", {"choices[1]", "empty"}},
             {"{\"prompt\": \"a\", \"choices\": [\"b\", \"c\", \"b\"], \"answer\": 0}",
              {"choices[2]", "same text as choice 0"}},
             {"{\"prompt\": \"a\", \"choices\": [\"b\", \"c\"], \"answer\": 2}", {"answer", "2", "0 to 1"}},
             {"{\"prompt\": \"a\", \"choices\": [\"b\", \"c\"], \"answer\": \"d\"}", {"answer", "choices"}},
             {"{\"prompt\": \"a\", \"choices\": [\"b\", \"c\"]}", {"answer"}},
             {"{\"prompt\": \"a\", \"choices\": [\"b\", \"c\"], \"answer\": 1}", {"choices", "line 1"}},
             {R"({"prompt": "a", "target": ""})", {"target", "empty"}},
             {R"({"prompt": "a", "target": "b", "references": ["b"]})", {"target", "only answer"}},
             {R"({"prompt": "a", "target": "b"})", {"target", "line 1 has none", "has one"}},
             {R"({"prompt": "a", "references": ["b"], "spans": {"x": "c"}})", {"spans", "'x'"}},
             {R"({"prompt": "a", "references": ["b"], "spans": {"x": ""}})", {"spans", "'x'"}},
             {R"({"prompt": "a", "references": ["b"], "spans": {"system": "a"}})", {"spans", "'system'"}},
             {R"({"prompt": "a", "references": ["b"], "spans": ["a"]})", {"spans", "object"}},
             {R"({"prompt": "a", "references": ["b"], "asks_for": "x"})", {"asks_for", "spans"}},
             {R"({"prompt": "a", "references": ["b"], "prompt": "c"})", {"prompt is given twice"}},
             {R"({"prompt": "a", "references": ["b"], "spans": {"x": "a", "x": "a"}})", {"x is given twice"}},
             {"[1]", {"object"}},
             {"not json", {}},
             {std::string(200, '[') + std::string(200, ']'), {}},
         }) {
        const std::string why = refusal(good + c.line);
        EXPECT_NE(why.find("x.jsonl:2"), std::string::npos) << c.line << "\n" << why;
        for (const std::string& word : c.says)
            EXPECT_NE(why.find(word), std::string::npos) << c.line << "\n" << why;
    }
    EXPECT_NE(refusal("\n \n").find("no line with a question"), std::string::npos);
    std::string many = "{\"prompt\": \"a\", \"references\": [\"b\"";
    for (int i = 0; i < 1000; ++i) many += ",\"b\"";
    EXPECT_NE(refusal(many + "]}").find("x.jsonl:1"), std::string::npos);
    EXPECT_NE(refusal("{\"prompt\": \"" + std::string((16 << 20), 'a') + "\"}").find("bytes"),
              std::string::npos);
}

TEST(DataFile, ReadsTheShippedFiles) {
    const auto folder = reference::source_folder() / "assets/tasks/data";
    EXPECT_EQ(read_data_file(folder / "short-summaries.jsonl").examples.size(), 12u);
    EXPECT_EQ(read_data_file(folder / "tale-questions.jsonl").examples.size(), 42u);
    EXPECT_TRUE(read_data_file(folder / "cause-and-effect.jsonl").has_choices());
}

}  // namespace
}  // namespace keyhole
