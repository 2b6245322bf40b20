// Names that fit the word at a place of a formula, and the one table that they come from.
#include "engine/base/mapped_file.h"
#include "engine/policy/formula_names.h"
#include "engine/policy/formula_words.h"
#include "tests/reference/source_folder.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace keyhole::test_formula_words {
namespace {

using Texts = std::vector<std::string>;

Texts texts_at(std::string_view text, std::size_t cursor, FormulaUse use = FormulaUse::choose,
               std::string_view spans = "none") {
    Texts out;
    for (const FormulaWord& word : words_at(text, cursor, use, spans).words) out.push_back(word.text);
    return out;
}

TEST(FormulaWords, FitTheWordBeforeTheCursor) {
    EXPECT_EQ(texts_at("s", 1), (Texts{"s", "slot", "sqrt(", "smooth(", "std(", "sum(", "softmax("}));
    EXPECT_EQ(texts_at("-kn", 3), (Texts{"knorm"}));
    EXPECT_EQ(texts_at("2*WI", 4), (Texts{"window", "win"})) << "without case";
    EXPECT_EQ(texts_at("s+pos", 5), (Texts{"position"}));
    EXPECT_EQ(texts_at("s/age", 5), (Texts{"age"}));
    EXPECT_EQ(texts_at("s/window", 5), (Texts{"window", "win"})) << "the cursor stands within the word";
    const FormulaWords within = words_at("s/window+1", 5, FormulaUse::choose, "none");
    EXPECT_EQ(std::pair(within.begin, within.end), std::pair(std::size_t{2}, std::size_t{8}));
    EXPECT_EQ(texts_at("ran(s)", 3), (Texts{"rank"})) << "its parenthesis stands there already";
}

TEST(FormulaWords, NoneIsOfferedWhereNoneIsBegun) {
    for (const auto& [text, cursor] : std::vector<std::pair<std::string, std::size_t>>{
             {"", 0}, {"s+", 2}, {"s ", 2}, {"12", 2}, {"xyz", 3}, {"s", 0}})
        EXPECT_TRUE(texts_at(text, cursor).empty()) << text;
    EXPECT_EQ(texts_at("age", 99), (Texts{"age"})) << "a cursor beyond the end";
}

TEST(FormulaWords, ScoreAndChooseKnowTheirOwnNames) {
    EXPECT_EQ(texts_at("p", 1, FormulaUse::score), (Texts{"p", "position", "prompt", "ptau"}));
    EXPECT_EQ(texts_at("p", 1), (Texts{"position", "prompt"}));
    EXPECT_TRUE(texts_at("rank", 4, FormulaUse::score).empty());
    EXPECT_TRUE(texts_at("keyd", 4, FormulaUse::score).empty());
    EXPECT_EQ(words_at("s", 1, FormulaUse::score, "none").words[0].help,
              "the head's score before the row, 0 for the row's own token");
    EXPECT_EQ(words_at("s", 1, FormulaUse::choose, "none").words[0].help,
              "the score of the token now, pooled over the query heads");
}

// What is offered can be read, and what can be read is offered.
TEST(FormulaWords, AreWhatTheParserReads) {
    for (const FormulaUse use : {FormulaUse::score, FormulaUse::choose})
        for (const QuantityName& name : kQuantityNames) {
            if (name.quantity == Quantity::prompt) continue;
            FormulaFault fault;
            const bool reads = bool(parse_formula(name.name, use, &fault));
            const Texts offered = texts_at(name.name, name.name.size(), use);
            EXPECT_EQ(std::ranges::count(offered, name.name) == 1, reads) << name.name << fault.what;
        }
}

TEST(FormulaWords, SpansAreNamedBehindIn) {
    EXPECT_EQ(texts_at("in(ru", 5, FormulaUse::protect, "rules@0..31 text@32.."), (Texts{"rules"}));
    EXPECT_TRUE(texts_at("min(ru", 6, FormulaUse::protect, "rules@0..31").empty());
}

TEST(FormulaWords, AFaultMarksItsWord) {
    const auto marked = [](std::string_view text, FormulaUse use) {
        FormulaFault fault;
        EXPECT_FALSE(parse_formula(text, use, &fault)) << text;
        return std::pair(fault.at, end_of_fault(text, fault.at));
    };
    const auto at = [](std::size_t begin, std::size_t end) { return std::pair(begin, end); };
    EXPECT_EQ(marked("s+knrom/2", FormulaUse::choose), at(2, 7));
    EXPECT_EQ(marked("s+win", FormulaUse::score), at(2, 5));
    EXPECT_EQ(marked("s+*2", FormulaUse::choose), at(2, 3));
    EXPECT_EQ(marked("s+", FormulaUse::choose), at(2, 3)) << "behind the last character";
}

// The manual has a row for each name, with these words.
TEST(FormulaWords, TheManualHasTheSameTable) {
    const std::string page =
        read_text_file(reference::source_folder() / "assets/manual/policies.md", 1 << 20);
    const auto expect_row = [&](std::string_view form, std::string_view help) {
        const std::string row = "| `" + std::string(form) + "` | " + std::string(help);
        EXPECT_NE(page.find(row), std::string::npos) << row;
    };
    for (const QuantityName& name : kQuantityNames) {
        expect_row(name.name, name.help);
        if (!name.help_in_score.empty()) expect_row(name.name, name.help_in_score);
    }
    for (const FunctionName& name : kFunctionNames) expect_row(name.form, name.help);
    for (const ConditionWord& word : kConditionWords) expect_row(word.form, word.help);
}

}  // namespace
}  // namespace keyhole::test_formula_words
