// Kinds of tokens by text.
#include "engine/analysis/token_class.h"

#include "engine/analysis/measure_table.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace keyhole::test_token_class {
namespace {

using enum TokenClass;

std::vector<TokenClass> classes_of(const std::vector<std::string>& pieces) {
    std::vector<TokenClass> out;
    bool in_word = false;
    for (const std::string& piece : pieces) out.push_back(token_class(piece, in_word));
    return out;
}

using Classes = std::vector<TokenClass>;

TEST(TokenClass, FollowsTheTextBefore) {
    EXPECT_EQ(
        classes_of({"The", " cat", "ch", "er", "\n", "sat", ",", " \"", "down", "\"", ".", " 48", "21"}),
        Classes({word_start, word_start, word_piece, word_piece, space, word_start, punctuation, punctuation,
                 word_start, punctuation, punctuation, number, number}));
}

TEST(TokenClass, ApostrophesAndHyphensStayInTheWord) {
    EXPECT_EQ(classes_of({"don", "'t", " 'hello", "'", " well", "-known", "-", "er"}),
              Classes({word_start, word_piece, word_start, punctuation, word_start, word_piece, punctuation,
                       word_piece}));
}

TEST(TokenClass, KnowsOtherScriptsAndBrokenCharacters) {
    EXPECT_EQ(classes_of({"\xc3\xa9t\xc3\xa9", " \xd0\xb4\xd0\xb0", "\xc2\xa0", "\xe2\x80\x9c", "\xe2\x82"}),
              Classes({word_start, word_start, space, punctuation, word_start}));
    EXPECT_EQ(classes_of({" 3", "rd", " x", "2"}), Classes({number, word_piece, word_start, number}));
}

TEST(TokenClass, SpecialTokensAreThoseOfTheModelAndThoseWithoutText) {
    RunInfo run;
    run.config.bos = 0;
    run.config.eos = {3};
    run.token_bytes = {"<s>", " a", "", "</s>", "b"};
    EXPECT_EQ(token_classes(run, std::vector<int>({0, 1, 4, 3, 4, 2, 9})),
              Classes({special, word_start, word_piece, special, word_start, special, special}));
}

TEST(Measures, EveryOneHasANameAUnitAnEquationAndASentence) {
    std::set<std::string_view> names;
    for (const Measure& m : measures()) {
        EXPECT_TRUE(names.insert(m.name).second) << m.name;
        for (std::string_view part : {m.name, m.label, m.unit, m.equation, m.help})
            EXPECT_FALSE(part.empty()) << m.name;
        EXPECT_EQ(m.help.back(), '.') << m.name;
        EXPECT_EQ(&measure(m.name), &m);
    }
}

}  // namespace
}  // namespace keyhole::test_token_class
