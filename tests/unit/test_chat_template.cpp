// Chat templates against Jinja itself: tests/fixtures/make_chat_templates.py.
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/model/chat_template.h"
#include "tests/reference/source_folder.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <random>

namespace keyhole::test_chat_template {
namespace {

using Json = nlohmann::ordered_json;

const Json& by_jinja() {
    static const Json json = [] {
        std::ifstream file(reference::source_folder() / "tests/fixtures/chat_templates.json");
        return Json::parse(file);
    }();
    return json;
}

const jinja::Dict kTokens = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
const std::vector<std::string> kMarks = {"<s>",
                                         "</s>",
                                         "<|im_start|>",
                                         "<|im_end|>",
                                         "<|eot_id|>",
                                         "<|end|>",
                                         "<end_of_turn>",
                                         "<|end_of_text|>",
                                         "<|EOT|>",
                                         "<｜end▁of▁sentence｜>",
                                         "<|END_OF_TURN_TOKEN|>",
                                         "[|endofturn|]",
                                         "<|return|>"};

ChatTemplate read(const Json& text) {
    return read_chat_template(text.get<std::string>(), kTokens, kMarks);
}

jinja::Value value_of(const Json& json) {
    if (json.is_string()) return json.get<std::string>();
    if (json.is_number_integer()) return json.get<std::int64_t>();
    if (json.is_array()) {
        jinja::List list;
        for (const Json& item : json) list.push_back(value_of(item));
        return list;
    }
    jinja::Dict dict;
    for (const auto& [key, item] : json.items()) dict.emplace_back(key, value_of(item));
    return dict;
}

// The answer is "4821.", which the model ends by its token, or which the user cuts off.
TEST(ChatTemplate, TurnsAreThoseOfJinja) {
    ASSERT_GE(by_jinja()["templates"].size(), 20u);
    int n_rewritten = 0;
    for (const Json& c : by_jinja()["templates"]) {
        SCOPED_TRACE(c["name"].get<std::string>());
        const ChatTemplate chat = read(c["template"]);
        ASSERT_TRUE(chat.is_known()) << chat.why_unknown;
        EXPECT_EQ(chat.form, c["form"]);
        const std::string first = first_turn(chat, "What is the code?");
        EXPECT_EQ(first, c["first"].get<std::string>());
        EXPECT_EQ(first_turn(chat, "  Two blanks,\na line and é. \n"), c["spaced"].get<std::string>());
        const std::string talk = c["talk"], cut = next_turn(chat, "Are you sure?", false);
        // Where an answer begins in the template, or with a blank, history differs before the answer alone.
        n_rewritten += chat.rewrites_history ? 1 : 0;
        const std::size_t answer = talk.find("4821.");
        EXPECT_EQ("4821." + cut, talk.substr(answer));
        EXPECT_TRUE(chat.rewrites_history || talk.starts_with(first));
        // The end token that the model writes is the part that next_turn() then leaves out.
        const std::string ended = next_turn(chat, "Are you sure?", true), token = chat.parts.end_token;
        EXPECT_TRUE(cut.ends_with(ended));
        EXPECT_TRUE(cut.substr(0, cut.size() - ended.size()).ends_with(token));
        EXPECT_EQ(ends_answer(chat, token), !token.empty() && c["name"] != "gpt-oss");
        EXPECT_FALSE(ends_answer(chat, "4821"));
    }
    EXPECT_EQ(n_rewritten, 3)
        << "R1's distillations, the form whose answer begins with <think>, and gpt-oss, "
           "whose answer names its channel";
}

// Two answers, the second cut off, behind a system message and without one.
TEST(ChatTemplate, LongerTalksAreThoseOfJinja) {
    constexpr const char *kSystem = "Answer in numbers.", *kQuestion = "What is the code?";
    int n_system = 0;
    for (const Json& c : by_jinja()["templates"]) {
        SCOPED_TRACE(c["name"].get<std::string>());
        const ChatTemplate chat = read(c["template"]);
        // A blank before an answer is the model's to write where the template stops before it.
        const std::string longer = c["longer"],
                          blank = longer.find(" 4821.") == first_turn(chat, kQuestion).size() ? " " : "";
        const std::string rest = blank + "4821." + next_turn(chat, "Are you sure?", false) + blank + "Yes." +
                                 next_turn(chat, "Thank you.", false);
        if (!chat.rewrites_history) {
            EXPECT_EQ(first_turn(chat, kQuestion) + rest, longer);
        }
        if (c["system"].is_null()) {
            EXPECT_THROW(first_turn(chat, kSystem, kQuestion), Error);
            continue;
        }
        ++n_system;
        const std::string first = first_turn(chat, kSystem, kQuestion);
        EXPECT_EQ(first, c["system"].get<std::string>());
        // Mistral's third form moves the system message to the last turn; what was said stays here.
        if (!chat.rewrites_history && c["name"] != "mistral v3") {
            EXPECT_EQ(first + rest, c["system_longer"].get<std::string>());
        }
    }
    EXPECT_GE(n_system, 18);
}

// The model ends the message of its analysis with the token that the template writes behind an answer.
TEST(ChatTemplate, GptOssEndsAnAnswerByItsReturn) {
    for (const Json& c : by_jinja()["templates"]) {
        if (c["name"] != "gpt-oss") continue;
        const ChatTemplate chat = read(c["template"]);
        EXPECT_TRUE(ends_answer(chat, "<|return|>"));
        EXPECT_FALSE(ends_answer(chat, "<|end|>"));
        EXPECT_TRUE(next_turn(chat, "Again?", true).starts_with("<|start|>user<|message|>Again?<|end|>"));
        EXPECT_TRUE(next_turn(chat, "Again?", false).starts_with("<|end|><|start|>user"));
        return;
    }
    FAIL();
}

TEST(ChatTemplate, TheEndTokenIsTheTokenizers) {
    for (const Json& c : by_jinja()["templates"]) {
        if (c["name"] != "zephyr") continue;
        const jinja::Dict others = {{"bos_token", "<b>"}, {"eos_token", "<|endoftext|>"}};
        const ChatTemplate chat = read_chat_template(c["template"].get<std::string>(), others,
                                                     std::vector<std::string>{"<|endoftext|>", "</s>"});
        EXPECT_EQ(first_turn(chat, "a"), "<|user|>\na<|endoftext|>\n<|assistant|>\n");
        EXPECT_EQ(chat.parts.end_token, "<|endoftext|>");
        // A template that needs a token which the tokenizer does not name is unknown, as it fails in Jinja.
        EXPECT_NE(read_chat_template(c["template"].get<std::string>(), {}, kMarks).why_unknown, "");
    }
}

TEST(ChatTemplate, AnUnknownOneSaysWhyAndLeavesTheTextAlone) {
    ASSERT_GE(by_jinja()["unknown"].size(), 10u);
    for (const Json& c : by_jinja()["unknown"]) {
        SCOPED_TRACE(c["name"].get<std::string>());
        const ChatTemplate chat = read(c["template"]);
        EXPECT_FALSE(chat.is_known());
        EXPECT_EQ(chat.form, "none");
        EXPECT_NE(chat.why_unknown.find(c["reason"].get<std::string>()), std::string::npos)
            << chat.why_unknown;
        EXPECT_EQ(chat.why_unknown.find('\n'), std::string::npos);
        EXPECT_EQ(first_turn(chat, "a <|im_end|> b"), "a <|im_end|> b");
        EXPECT_EQ(next_turn(chat, "c", true), "c");
        const std::vector<std::string> tokens = {"a", "b"};
        EXPECT_EQ(template_tokens(chat.parts, tokens), std::vector<bool>(2, false));
    }
    EXPECT_FALSE(read("").is_known());
    EXPECT_EQ(read("").why_unknown, "") << "none at all";
}

// Cuts the text at every place: tokens of what was said are not dimmed, all others are.
TEST(ChatTemplate, MarksTheTokensOfTheTemplate) {
    for (const Json& c : by_jinja()["templates"]) {
        SCOPED_TRACE(c["name"].get<std::string>());
        const ChatTemplate chat = read(c["template"]);
        const std::string talk =
            first_turn(chat, "What is the code?") + "4821." + next_turn(chat, "Are you sure?", false);
        std::vector<std::string> letters;
        for (const char letter : talk) letters.emplace_back(1, letter);
        std::string said, other;
        const std::vector<bool> marks = template_tokens(chat.parts, letters);
        for (std::size_t i = 0; i < marks.size(); ++i) (marks[i] ? other : said) += talk[i];
        EXPECT_EQ(said, "What is the code?4821.Are you sure?") << other;
        // A token that is partly the template's is marked.
        const std::size_t at = talk.find("What");
        const std::vector<std::string> two = {talk.substr(0, at + 2), talk.substr(at + 2)};
        EXPECT_TRUE(template_tokens(chat.parts, two)[0]);
    }
}

TEST(Jinja, TheLanguageIsThatOfJinja) {
    const jinja::Dict variables = {{"x", "X"},
                                   {"d", jinja::Dict{{"a", 1}, {"b", "two"}, {"c", 3}}},
                                   {"messages", value_of(Json::parse(R"([{"role": "user", "content": "hi"},
                                                       {"role": "assistant", "content": "ho"}])"))}};
    ASSERT_GE(by_jinja()["language"].size(), 40u);
    for (const Json& c : by_jinja()["language"]) {
        SCOPED_TRACE(c["template"].get<std::string>());
        EXPECT_EQ(jinja::Template(c["template"].get<std::string>()).render(variables),
                  c["text"].get<std::string>());
    }
}

// A template comes from a file of strangers: it may run for a bounded time in bounded memory.
TEST(Jinja, HostileTemplatesEnd) {
    const auto repeated = [](const std::string& text, int n) {
        std::string out;
        for (int i = 0; i < n; ++i) out += text;
        return out;
    };
    const std::vector<std::string> hostile = {
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% set n = namespace(a=[1]) %}{% for i in range(999) %}{% set n.a = [n.a] %}{% endfor %}",
        "{% set n = namespace(a=[1]) %}{% for i in range(60) %}{% set n.a = n.a + n.a %}{% endfor %}",
        "{% set n = namespace(a=[1]) %}{% for i in range(60) %}{% set n.a = [n.a, n.a] %}{% endfor %}{{ n.a "
        "== n.a }}",
        "{% set n = namespace(a='x') %}{% for i in range(60) %}{% set n.a = n.a ~ n.a %}{% endfor %}",
        "{{ 'x' * 99999999999 }}",
        "{{ range(0, 9223372036854775807, 1) }}",
        "{{ range(1, 9, 0) }}",
        "{{ 9223372036854775807 + 1 }}",
        "{{ 99999999999999999 * 99999999999999999 }}",
        "{{ 1 / 0 }}",
        "{{ 1 % 0 }}",
        "{{ 'abc'[::0] }}",
        "{{ x.y.z }}",
        "{{ none() }}",
        "{{ 'a'|join|nothing }}",
        "{% set n = namespace() %}{% set n.n = n %}",
        "{{ " + repeated("(", 5000),
        "{{ " + repeated("-", 5000) + "1 }}",
        "{{ " + repeated("not ", 5000) + "1 }}",
        "{{ 1" + repeated("+1", 50000) + " }}",
        "{{ x" + repeated(".x", 50000) + " }}",
        repeated("{% if 1 %}", 5000),
        repeated("{% for a in b %}", 5000),
        "{{ " + repeated("[", 5000),
        "{{ 1 " + repeated("if 1 else 1 ", 5000) + "}}",
        repeated("x", 300000),
        "{%",
        "{{",
        "{#",
        "{{ '",
        "{% set %}",
        "{% if %}{% endif %}",
        "{% for %}",
        "{% else %}",
        "{% endif %}",
        "{{ } }}",
        "{{ ) }}",
        "{{ 1e5 }}",
        "{{ a b }}",
        "{{ '\\x' }}"};
    for (const std::string& text : hostile) {
        SCOPED_TRACE(text.substr(0, 100));
        EXPECT_THROW(jinja::Template(text).render({}), Error);
    }
    // Real templates with bytes changed either render or are refused.
    std::mt19937 random(7);
    int n_refused = 0, n = 0;
    for (const Json& c : by_jinja()["templates"])
        for (int i = 0; i < 60; ++i, ++n) {
            std::string text = c["template"];
            for (int k = 0; k < 3; ++k) {
                const std::size_t at = random() % text.size();
                if (random() % 2 == 0)
                    text.erase(at, 1 + random() % 8);
                else
                    text[at] = "{}%#'\"\\()[].|-+ \n\xff"[random() % 19];
            }
            n_refused += read_chat_template(text, kTokens, kMarks).is_known() ? 0 : 1;
        }
    EXPECT_GT(n_refused, n / 10);
    EXPECT_LT(n_refused, n);
}

}  // namespace
}  // namespace keyhole::test_chat_template
