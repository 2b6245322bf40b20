#include "engine/base/index.h"
#include "engine/model/chat_template.h"
#include "tests/reference/source_folder.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fstream>

namespace keyhole::test_chat_template {
namespace {

nlohmann::json rendered_by_jinja() {
    std::ifstream file(reference::source_folder() / "tests/fixtures/chat_templates.json");
    return nlohmann::json::parse(file);
}

// The answer is "4821.", which the model ends by its token, or which the user cuts off.
TEST(ChatTemplate, TurnsAreThoseOfJinja) {
    const nlohmann::json cases = rendered_by_jinja();
    ASSERT_GE(cases.size(), 6u);
    for (const auto& c : cases) {
        SCOPED_TRACE(c["name"].get<std::string>());
        const ChatTemplate chat = recognise_chat_template(c["template"].get<std::string>());
        EXPECT_EQ(chat_format_name(chat.format), c["format"].get<std::string>());
        EXPECT_EQ(chat_format_from_name(chat_format_name(chat.format)), chat.format);
        const std::string first = first_turn(chat, "What is the code?");
        EXPECT_EQ(first, c["first"].get<std::string>());
        const std::string talk = c["talk"];
        EXPECT_EQ(first + "4821." + next_turn(chat, "Are you sure?", false), talk);
        // The end token that the model writes is the part that next_turn() then leaves out.
        const std::string ended = next_turn(chat, "Are you sure?", true);
        const std::string cut = next_turn(chat, "Are you sure?", false);
        ASSERT_LT(ended.size(), cut.size());
        const std::string token = cut.substr(0, cut.size() - ended.size());
        EXPECT_TRUE(token == "<|im_end|>" || token == "<|eot_id|>" || token == "</s>" || token == "<|end|>")
            << token;
        EXPECT_TRUE(ends_answer(chat.format, token));
        EXPECT_FALSE(ends_answer(chat.format, "4821"));
        EXPECT_EQ(first + "4821." + token + ended, talk);
    }
}

TEST(ChatTemplate, FindsTheSystemMessageOfTheTemplate) {
    for (const auto& c : rendered_by_jinja()) {
        const std::string system = recognise_chat_template(c["template"].get<std::string>()).system;
        EXPECT_EQ(c["format"] == "chatml", !system.empty()) << c["name"];
        EXPECT_NE(c["first"].get<std::string>().find(system), std::string::npos);
    }
}

TEST(ChatTemplate, AnUnknownOneLeavesTheTextAlone) {
    for (const char* jinja : {"", "{{ messages[0].content }}", "User: {{ x }}"}) {
        const ChatTemplate chat = recognise_chat_template(jinja);
        EXPECT_EQ(chat.format, ChatFormat::none);
        EXPECT_EQ(first_turn(chat, "a <|im_end|> b"), "a <|im_end|> b");
        EXPECT_EQ(next_turn(chat, "c", true), "c");
        const std::vector<std::string> tokens = {"a", "b"};
        EXPECT_EQ(template_tokens(chat.format, tokens), std::vector<bool>(2, false));
    }
    EXPECT_EQ(chat_format_from_name("nonsense"), ChatFormat::none);
}

// Cuts the text at every place: tokens of what was said are not dimmed, all others are.
TEST(ChatTemplate, MarksTheTokensOfTheTemplate) {
    for (const auto& c : rendered_by_jinja()) {
        SCOPED_TRACE(c["name"].get<std::string>());
        const ChatTemplate chat = recognise_chat_template(c["template"].get<std::string>());
        const std::string talk = c["talk"];
        std::vector<std::string> letters;
        for (const char letter : talk) letters.emplace_back(1, letter);
        std::string said, other;
        const std::vector<bool> marks = template_tokens(chat.format, letters);
        for (std::size_t i = 0; i < marks.size(); ++i) (marks[i] ? other : said) += talk[i];
        EXPECT_EQ(said, "What is the code?4821.Are you sure?") << other;
        // A token that is partly the template's is marked.
        const std::size_t at = talk.find("What");
        const std::vector<std::string> two = {talk.substr(0, at + 2), talk.substr(at + 2)};
        EXPECT_TRUE(template_tokens(chat.format, two)[0]);
    }
}

}  // namespace
}  // namespace keyhole::test_chat_template
